"""The check that a part of a run has the members of its protocol."""

from typing import Any, Generic, Protocol

from rl4p.base.errors import InputError


def require(part: Any, contract: type, key: str) -> None:
    """Checks that a part of a run has every member of its protocol.

    Args:
      contract: a protocol of `rl4p.protocols`.
      key: the configuration key of the part.

    Raises:
      InputError: a member is missing, or it is not a method where the protocol has one.
    """
    kind = type(part)
    for name, is_method in required_members(contract).items():
        if callable(getattr(part, name, None)) if is_method else hasattr(part, name):
            continue
        raise InputError(
            f"{key}: the class {kind.__module__}.{kind.__qualname__} has no "
            f"{'method' if is_method else 'attribute'} {name}, but "
            f"{contract.__module__}.{contract.__qualname__} requires it: add it to the class."
        )


def required_members(contract: type) -> dict[str, bool]:
    """Returns the names of the members of a protocol, and for each whether it is a method."""
    members: dict[str, bool] = {}
    for base in contract.__mro__:
        if base in (Protocol, Generic, object):
            continue
        members |= dict.fromkeys(vars(base).get("__annotations__", {}), False)
        members |= {name: callable(member) for name, member in vars(base).items()}
    return {
        name: is_method
        for name, is_method in members.items()
        if name == "__call__" or not name.startswith("_")
    }
