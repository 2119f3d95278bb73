"""Optimizers from optax, built from the configuration."""
