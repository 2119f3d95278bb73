"""The rollout phase, which turns prompts into trajectories."""
