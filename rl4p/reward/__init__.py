"""The reward phase, which grades texts."""
