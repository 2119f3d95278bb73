"""Keeping the policy near a reference: `protocols.KL`."""
