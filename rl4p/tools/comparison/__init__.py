"""The comparison of runs: `rl4p.compare` groups them by what differs and measures the differences.

No module of this package imports JAX.
"""
