"""KEY=VALUE arguments of the entry points that do not compose a Hydra configuration."""

from collections.abc import Collection, Mapping, Sequence

from rl4p.errors import InputError


def key_values(
    arguments: Sequence[str],
    required: Mapping[str, str],
    optional: Mapping[str, Collection[str] | None],
) -> dict[str, str]:
    """Returns the values by key.

    Args:
      required: maps each required key to the name of its value in error messages.
      optional: maps each optional key to its allowed values; None allows any value.

    Raises:
      InputError: a key is missing, unknown or empty, or a value is not allowed.
    """
    given = {key: value for key, _, value in (argument.partition("=") for argument in arguments)}
    if not set(required) <= set(given) <= {*required, *optional} or not all(given.values()):
        needed = " and ".join(f"{key}={value}" for key, value in required.items())
        raise InputError(f"Give {needed}. Optional: {', '.join(f'{key}=' for key in optional)}.")
    for key, value in given.items():
        words = optional.get(key)
        if words is not None and value not in words:
            raise InputError(f"{key}={value} is not one of {', '.join(words)}.")
    return given


def listed(value: str) -> list[str]:
    """Returns the names in a list such as [a,b]."""
    names = value.strip("[]").replace(" ", "").split(",")
    return [name for name in names if name]


def whole_number(key: str, value: str) -> int:
    """Returns `value` as an integer that is not negative.

    Raises:
      InputError: `value` is not such a number.
    """
    if not value.isdecimal():
        raise InputError(f"{key}={value} is not a whole number.")
    return int(value)
