"""Counts what makes the house hard to read: `python -m tests.house` prints it."""
