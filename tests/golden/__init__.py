"""Small models of every family, and what transformers makes of them (`make.py`)."""
