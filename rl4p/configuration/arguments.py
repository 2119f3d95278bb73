"""KEY=VALUE arguments of an entry point that composes nothing."""

from collections.abc import Collection, Mapping, Sequence

from rl4p.errors import InputError


def key_values(
    arguments: Sequence[str],
    required: Mapping[str, str],
    optional: Mapping[str, Collection[str] | None],
) -> dict[str, str]:
    """The values by key.

    Args:
      required: keys, and what to call their values when asking for them.
      optional: keys, and the words that their values must be among; None is any.

    Raises:
      InputError: a key is missing, unknown or empty, or a value is not one of its words.
    """
    given = {key: value for key, _, value in (argument.partition("=") for argument in arguments)}
    if not set(required) <= set(given) <= {*required, *optional} or not all(given.values()):
        needed = " and ".join(f"{key}={value}" for key, value in required.items())
        raise InputError(
            f"Give {needed}, and {', '.join(f'{key}=' for key in optional)} if you like."
        )
    for key, value in given.items():
        words = optional.get(key)
        if words is not None and value not in words:
            raise InputError(f"{key}={value} is not one of {', '.join(words)}.")
    return given


def listed(value: str) -> list[str]:
    """The names in a list such as [a,b]."""
    names = value.strip("[]").replace(" ", "").split(",")
    return [name for name in names if name]


def whole_number(key: str, value: str) -> int:
    """Reads a count.

    Raises:
      InputError: it is not one.
    """
    if not value.isdecimal():
        raise InputError(f"{key}={value} is not a whole number.")
    return int(value)
