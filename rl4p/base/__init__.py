"""Data types and small pure parts that every other package may import."""
