"""What differs between two configurations, in the words of an error message."""

from collections.abc import Iterator, Mapping
from typing import Any

from rl4p.configuration.trust import join


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value in a tree with its dotted key."""
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from leaves(child, join(key, name))
    else:
        yield key, value


def differences(before: Any, after: Any, *, most: int | None = None) -> str:
    """Returns what differs between two trees: `seed was 0 and would be 3, ...`; "" if nothing.

    Args:
      most: the number of differences to name; the others are counted. None names all.
    """
    old, new = dict(leaves(before)), dict(leaves(after))
    changes = [
        f"{key} was {old.get(key, 'absent')} and would be {new.get(key, 'absent')}"
        for key in dict.fromkeys([*old, *new])
        if key not in old or key not in new or old[key] != new[key]
    ]
    left_out = len(changes) - len(changes[:most])
    return ", ".join(changes[:most]) + f", and {left_out} more" * bool(left_out)
