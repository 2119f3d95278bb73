"""Entropy bonuses, and the selection of tokens by entropy: `protocols.Entropy`."""
