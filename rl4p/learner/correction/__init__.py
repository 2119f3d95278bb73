"""Weights for what another policy sampled: `protocols.Correction`."""
