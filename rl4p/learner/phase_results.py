"""The types and the shapes of what a phase returned, in one sentence if they are wrong.

The values are not read, so the checks cost nothing: the checks of traced code run only while JAX
traces it. `debug.check_batches` also checks the values (`loop/checks.py`).
"""

from typing import Any, NoReturn

import jax.numpy as jnp

from rl4p.base.errors import RunError

KINDS = {"b": "bool", "i": "int", "f": "float"}


def refuse(key: str, phase: Any, expected: str, got: str) -> NoReturn:
    """Raises RunError: the phase under `key` must return `expected`, and `got` is in its place."""
    kind = type(phase)
    raise RunError(f"{key} ({kind.__module__}.{kind.__qualname__}) must return {expected}, {got}.")


def check_array(
    key: str, phase: Any, field: str, value: Any, shape: tuple[int, ...], kinds: str = "f"
) -> None:
    """Raises RunError unless a value is an array of this shape and of one of the kinds b, i, f."""
    names = " or ".join(KINDS[kind] for kind in kinds)
    expected = f"{field} as an array of {names} with the shape {shape}"
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        refuse(key, phase, expected, f"not {described(value)}")
    if tuple(value.shape) != shape:
        refuse(key, phase, expected, f"not with the shape {tuple(value.shape)}")
    if kind_of(value.dtype) not in kinds:
        refuse(key, phase, expected, f"not of {value.dtype}")


def check_pair(key: str, phase: Any, result: Any, names: str) -> tuple[Any, Any]:
    """Returns a result that is a tuple of two (`names`, for the message); raises RunError else."""
    if not isinstance(result, tuple) or len(result) != 2:
        refuse(key, phase, names, f"not {described(result)}")
    return result


def check_names(key: str, phase: Any, field: str, value: Any) -> dict[str, Any]:
    """Returns a result that is a dictionary of arrays by name; raises RunError if it is not."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        refuse(key, phase, f"{field} as a dictionary of arrays by name", f"not {described(value)}")
    return value


def kind_of(dtype: Any) -> str:
    """Returns b, i or f for a dtype, also of the small floats that NumPy does not know, or ?."""
    for kind, of in (("b", jnp.bool_), ("i", jnp.integer), ("f", jnp.floating)):
        if jnp.issubdtype(dtype, of):
            return kind
    return "?"


def described(value: Any) -> str:
    """Returns a short description of a value, for messages."""
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return "None" if value is None else f"a {type(value).__qualname__}"
