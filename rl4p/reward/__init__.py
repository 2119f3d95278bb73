"""The reward phase: texts to grades."""
