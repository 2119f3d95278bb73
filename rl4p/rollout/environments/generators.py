"""The global random generators of Python and NumPy, which games draw from while others do too."""

import logging
import random
from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Any, TypeVar

import numpy as np

log = logging.getLogger(__name__)

Result = TypeVar("Result")

ONE_CALL = Lock()  # held while an episode has the generators for itself


class OwnGenerators:
    """Calls of an episode, between which it keeps the states of the generators.

    The first call begins with the seed of the episode, so that all samples of a prompt draw the
    same in the same calls. One call of all episodes runs at a time; the process then goes on with
    its own states.

    Args:
      seed: in [0, 2^32).
    """

    def __init__(self, seed: int) -> None:
        self.seed, self.states = seed, None

    def call(self, function: Callable[[], Result]) -> Result:
        """Returns the result of a function."""
        with ONE_CALL:
            before = states()
            if self.states is None:
                random.seed(self.seed)
                np.random.seed(self.seed)  # noqa: NPY002 - the one that games draw from
            else:
                restore(self.states)
            try:
                return function()
            finally:
                self.states = states()
                restore(before)


def watched(function: Callable[[], Result], name: Callable[[], str], hint: str) -> Result:
    """Returns the result of a function, and warns once if one of the generators was used.

    Args:
      name: returns the name of the class that is called, after the call.
      hint: what to do about it.
    """
    before = states()
    try:
        return function()
    finally:
        if states() != before:
            warn_once(name(), hint)


def states() -> Any:
    """Returns the states of both generators, as values that can be compared."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002
    return random.getstate(), (kind, tuple(np.asarray(keys).tolist()), *rest)


def restore(saved: Any) -> None:
    """Puts both generators into states that `states` returned."""
    of_python, of_numpy = saved
    random.setstate(of_python)
    np.random.set_state(of_numpy)  # noqa: NPY002


@cache
def warn_once(name: str, hint: str) -> None:
    """Warns of a world that depends on a global generator."""
    log.warning(
        "%s draws from a global generator of Python or NumPy, so the samples of a prompt may meet "
        "different worlds: %s.",
        name,
        hint,
    )
