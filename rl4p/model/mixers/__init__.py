"""What mixes the tokens of a sequence in place of attention, one kind per file."""
