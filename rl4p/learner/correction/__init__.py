"""Importance weights for tokens that another policy sampled: `protocols.Correction`."""
