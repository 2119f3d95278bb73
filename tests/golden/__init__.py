"""Small models of every family, and the outputs of transformers for them (`make.py`)."""
