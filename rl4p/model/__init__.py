"""The policy: a Flax decoder, its tokenizer, and readers and writers of Hugging Face folders."""
