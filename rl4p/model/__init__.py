"""The policy: a Flax decoder, its tokenizer, and Hugging Face folders in and out."""
