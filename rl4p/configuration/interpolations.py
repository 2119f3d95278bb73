"""A limit on interpolations: a few lines of `${a}${a}` can expand to more than fits in memory.

OmegaConf resolves an interpolation whenever a value is read. `limit_interpolations` sets the limit;
whatever reads files that anyone may have written calls it first.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from omegaconf import Container
from omegaconf.errors import InterpolationResolutionError

from rl4p.errors import InputError

MOST_CHARACTERS = 2**20  # in the values of all interpolations together
COST = 100  # characters added for each interpolation, since an empty value takes time too

_seen: ContextVar[list[int] | None] = ContextVar("seen", default=None)  # characters so far
_resolve = Container.resolve_parse_tree


def limit_interpolations() -> None:
    """Limits how much text each value expands to that is read from now on, in this process.

    Repeated calls have no effect. OmegaConf offers no setting for this, so that the call replaces
    the method by which it resolves interpolations.
    """
    Container.resolve_parse_tree = _bounded


@contextmanager
def bounded_interpolations() -> Iterator[None]:
    """Limits how much text the interpolations resolved in a `with` block expand to, all together.

    Outside of a block the same limit applies to each value that is read.

    Raises:
      InputError: they expand to more, even if code in the block caught OmegaConf's error.
    """
    limit_interpolations()
    token = _seen.set(seen := [0])
    try:
        yield
    finally:
        _seen.reset(token)
        if seen[0] > MOST_CHARACTERS:
            raise InputError(
                f"The interpolations expand to more than {MOST_CHARACTERS:,} characters: write "
                "their values out."
            ) from None


def _bounded(self: Container, *args: Any, **options: Any) -> Any:
    """Resolves an interpolation as OmegaConf does, and counts the characters of its value."""
    if (seen := _seen.get()) is None:  # the value that is read, and not one within it
        try:
            with bounded_interpolations():
                return _bounded(self, *args, **options)
        except InputError as error:
            raise InterpolationResolutionError(str(error)) from None
    value = _resolve(self, *args, **options)
    seen[0] += COST + len(str(value))
    if seen[0] > MOST_CHARACTERS:
        raise InterpolationResolutionError("too many characters")
    return value
