"""Declarative reinforcement-learning post-training of language models in JAX.

An experiment is one line of configuration. Start with ``python -m rl4p.train --help``. To write a
phase of your own, read ``rl4p/protocols/phases.py``.

From Python (docs/runs.md): `compose`, `build`, `train`, `rollout_batches` and `Record`, which are
imported at their first use.
"""

import importlib
import time
from typing import Any

# `__getattr__` has them, which pyright does not see.
__all__ = ["Record", "build", "compose", "rollout_batches", "train"]  # pyright: ignore[reportUnsupportedDunderAll]

_MODULES = {
    "Record": "rl4p.runs.record",
    "build": "rl4p.runs.build",
    "compose": "rl4p.command",
    "rollout_batches": "rl4p.loop.batches",
}

__version__ = "0.3.0"
STARTED = time.monotonic()  # from which stop.before counts: a command imports this file first


def __getattr__(name: str) -> Any:
    if name == "train":
        return importlib.import_module("rl4p.train")  # a module that can be called
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'rl4p' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
