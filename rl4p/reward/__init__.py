"""The reward phase, which grades episodes."""
