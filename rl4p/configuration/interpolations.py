"""A bound on interpolations: a few lines of `${a}${a}` can describe more than fits in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from omegaconf import Container
from omegaconf.errors import InterpolationResolutionError

from rl4p.errors import InputError

MOST_CHARACTERS = 2**20  # of all that is put in the place of interpolations
COST = 100  # characters for which each counts besides, since empty ones take time too

_seen: ContextVar[list[int] | None] = ContextVar("seen", default=None)  # characters so far
_resolve = Container.resolve_parse_tree


@contextmanager
def bounded_interpolations() -> Iterator[None]:
    """Bounds what the interpolations that are resolved within describe, all together.

    Raises:
      InputError: they describe too much. Nothing within has seen it, whatever it caught.
    """
    token = _seen.set(seen := [0])
    try:
        yield
    finally:
        _seen.reset(token)
        if seen[0] > MOST_CHARACTERS:
            raise InputError(
                "The interpolations of the configuration describe too much: at most "
                f"{MOST_CHARACTERS:,} characters replace them."
            ) from None


def _bounded(self: Container, *args: Any, **options: Any) -> Any:
    """Resolves one interpolation as OmegaConf does, and counts what it is."""
    if (seen := _seen.get()) is None:
        return _resolve(self, *args, **options)
    value = None
    if seen[0] <= MOST_CHARACTERS:
        value = _resolve(self, *args, **options)
        seen[0] += COST + len(str(value))
    if seen[0] > MOST_CHARACTERS:
        raise InterpolationResolutionError("too many interpolations")
    return value


Container.resolve_parse_tree = _bounded
