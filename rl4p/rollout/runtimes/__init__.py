"""Machines for the commands of an episode, each a file of its own."""
