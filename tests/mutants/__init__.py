"""Small faults put into the code on purpose, each of which some test must notice."""
