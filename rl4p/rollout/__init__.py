"""The rollout phase: prompts to trajectories."""
