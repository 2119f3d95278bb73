"""Configuration: Hydra composes it; this package validates it and builds objects from it.

`compose` returns a checked configuration, and `instantiate` is the only function that turns a
`_target_` into an object.
"""

from rl4p.configuration.composition import compose
from rl4p.configuration.targets import instantiate

__all__ = ["compose", "instantiate"]
