"""What tasks have in common: reading a final answer off a text."""
