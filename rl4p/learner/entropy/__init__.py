"""Keeping the policy from growing certain too soon: `protocols.Entropy`."""
