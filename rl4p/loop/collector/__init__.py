"""Collectors: how prompts become graded trajectories."""
