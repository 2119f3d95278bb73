"""Collectors, which turn prompts into graded trajectories."""
