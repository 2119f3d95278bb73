"""Penalties that keep the policy near a reference: `protocols.KL`."""
