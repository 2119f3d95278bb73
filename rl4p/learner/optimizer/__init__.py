"""Optimizers from optax, by configuration."""
