"""Configurations as trees: dotted keys, values, and what differs between two trees."""

from collections.abc import Iterator, Mapping
from typing import Any


def join(key: str, name: object) -> str:
    """Returns the dotted key of a child."""
    return f"{key}.{name}" if key else str(name)


def leaves(value: Any, key: str = "", *, lists: bool = True) -> Iterator[tuple[str, Any]]:
    """Yields the values in a tree with their keys; an empty mapping or list is a value.

    Args:
      lists: whether to yield the elements of a list; otherwise a list is a value.
    """
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from leaves(child, join(key, name), lists=lists)
    elif lists and isinstance(value, list) and value:
        for i, child in enumerate(value):
            yield from leaves(child, f"{key}[{i}]", lists=lists)
    else:
        yield key, value


def below(tree: Any, key: str) -> Any:
    """Returns the value at a dotted key; None if the tree has none."""
    for name in key.split("."):
        tree = tree.get(name) if isinstance(tree, Mapping) else None
    return tree


def differences(before: Any, after: Any, *, most: int | None = None) -> str:
    """Returns what differs between two trees: `seed was 0 and would be 3, ...`; "" if nothing.

    Args:
      most: the number of differences to name; the others are counted. None names all.
    """
    old, new = dict(leaves(before, lists=False)), dict(leaves(after, lists=False))
    changes = [
        f"{key} was {old.get(key, 'absent')} and would be {new.get(key, 'absent')}"
        for key in dict.fromkeys([*old, *new])
        if key not in old or key not in new or old[key] != new[key]
    ]
    left_out = len(changes) - len(changes[:most])
    return ", ".join(changes[:most]) + f", and {left_out} more" * bool(left_out)
