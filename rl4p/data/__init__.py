"""Questions and their answers: data sets, and the prompts made from them."""
