"""Configuration: Hydra composes it, this package refuses what is wrong with it, and builds it.

`main` wraps every entry point, `compose` gives tests and notebooks a checked configuration, and
`instantiate` is the only place where a `_target_` becomes an object.
"""

from rl4p.configuration.command_line import compose, main
from rl4p.configuration.targets import instantiate

__all__ = ["compose", "instantiate", "main"]
