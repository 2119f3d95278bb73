"""Configuration: Hydra composes it; this package validates it and builds objects from it.

`main` wraps every entry point, `call` runs a job from Python, `compose` returns a checked
configuration to tests and notebooks, and `instantiate` is the only function that turns a `_target_`
into an object.
"""

from rl4p.configuration.command_line import call, compose, main
from rl4p.configuration.targets import instantiate

__all__ = ["call", "compose", "instantiate", "main"]
