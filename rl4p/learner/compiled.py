"""Compiled functions of a `TrainState`, which refuse a state whose buffers were donated."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

import jax
from jax.core import Tracer

from rl4p.base.types import TrainState

P = ParamSpec("P")
R = TypeVar("R")


class Compiled(Generic[P, R]):
    """A compiled function, which checks its arguments before a buffer is donated.

    It waits for the arguments: if the computation of one fails, the state keeps its buffers. Within
    another compiled function it is the plain function, because its arguments have no values there.

    Attributes:
      check: another check of the arguments; None for no other.
    """

    def __init__(
        self, function: Callable[P, R], check: Callable[P, None] | None, **options: Any
    ) -> None:
        self.function = function
        self.check = check
        self.program = jax.jit(function, **options)
        self.trace, self.lower = self.program.trace, self.program.lower
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        values = (*args, *kwargs.values())
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(values)):
            return self.function(*args, **kwargs)
        for value in values:
            if isinstance(value, TrainState):
                value.check_not_donated()
        jax.block_until_ready(values)
        if self.check is not None:
            self.check(*args, **kwargs)
        return self.program(*args, **kwargs)


def compiled(
    *static: str, donates: bool = False, check: Callable[P, None] | None = None
) -> Callable[[Callable[P, R]], Compiled[P, R]]:
    """Returns a decorator that compiles a function of a `TrainState`.

    Args:
      static: the names of the static arguments.
      donates: whether the buffers of the argument `state` are donated.
      check: a function that is called with the arguments before each call.
    """

    def decorate(function: Callable[P, R]) -> Compiled[P, R]:
        donated = ("state",) if donates else ()
        return Compiled(function, check, static_argnames=static, donate_argnames=donated)

    return decorate
