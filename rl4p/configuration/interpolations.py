"""A limit on interpolations: a few lines of `${a}${a}` can expand to more than fits in memory.

OmegaConf resolves an interpolation whenever a value is read. `limit_interpolations` sets the limit;
whatever reads files that anyone may have written calls it first. From then on, ``${oc.env:NAME}``
reads only variables that a command line names in this way: a file cannot read the environment.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from omegaconf import Container, OmegaConf
from omegaconf.errors import InterpolationResolutionError
from omegaconf.resolvers import oc

from rl4p.base.errors import InputError

MOST_CHARACTERS = 2**20  # in the values of all interpolations together
COST = 100  # characters added for each interpolation, since an empty value takes time too

_seen: ContextVar[list[int] | None] = ContextVar("seen", default=None)  # characters so far
_resolve = Container.resolve_parse_tree
_variables: frozenset[str] = frozenset()  # that the command line reads
_NONE: Any = object()


def limit_interpolations() -> None:
    """Limits how much text each value expands to that is read from now on, in this process.

    Repeated calls have no effect. OmegaConf offers no setting for this, so that the call replaces
    the method by which it resolves interpolations.
    """
    Container.resolve_parse_tree = _bounded
    OmegaConf.register_new_resolver("oc.env", _environment, replace=True)


def permit_variables(words: Sequence[str]) -> None:
    """Permits ``${oc.env:NAME}`` only for the names that words of a command line read so."""
    global _variables
    names = re.findall(r"oc\.env:\s*['\"]?([A-Za-z_]\w*)", " ".join(words))
    _variables = frozenset(names)


def _environment(name: str, default: Any = _NONE) -> Any:
    """Returns an environment variable, for ``${oc.env:NAME}`` and ``${oc.env:NAME,DEFAULT}``.

    Raises:
      InputError, KeyError: no word of the command line reads it, or it is not set.
    """
    if name not in _variables:
        raise InputError(
            f"a file reads the environment variable {name!s:.100}, and anyone may have written it: "
            f"write the key with ${{oc.env:{name!s:.100}}} on the command line if you trust it"
        )
    return oc.env(name) if default is _NONE else oc.env(name, default)


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
