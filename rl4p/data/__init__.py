"""Data sets of questions and answers, and the prompts made from them."""
