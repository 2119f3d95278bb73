"""Data types as dictionaries of JSON values and back, without the loss of a bit.

A value that JSON lacks is an object with one key: `$array`, `$float`, `$tuple`, `$bytes`, `$dict`,
or `$` and the name of a data type. Arrays come back as numpy arrays on the host.
"""

import array as arrays
import base64
import struct
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields
from datetime import date, datetime
from enum import Enum
from functools import cache
from math import isfinite
from numbers import Integral, Real
from typing import Any, ClassVar, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.errors import InputError

PLAIN = (str, int, bool, type(None))
NUMBERS: dict[Any, type] = {int: Integral, float: Real}  # which include numpy's
ENUMS: dict[str, type[Enum]] = {}
E = TypeVar("E", bound=type[Enum])


class Serializable:
    """A dataclass with `to_dict` and `from_dict`."""

    classes: ClassVar[dict[str, type[Any]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        Serializable.classes.setdefault(cls.__name__, cls)

    def to_dict(self) -> dict[str, Any]:
        """Returns the fields as JSON values, which `from_dict` turns back into an equal object.

        Raises:
          InputError: a field has a value of another type than the module lists, or an array that
            is not on the devices of this process.
        """
        return {name: encoded(getattr(self, name), name) for name in hints(type(self))}

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Self:
        """Returns the object of a dictionary of `to_dict`.

        A field that an earlier version did not have may be missing, and has its default.

        Raises:
          InputError: a key is missing or unknown, or a value is damaged or has a wrong type.
        """
        name, known, required = cls.__name__, hints(cls), without_default(cls)
        if not isinstance(row, Mapping):
            raise InputError(f"{name} is made from a dictionary, not from {type(row).__name__}.")
        for kind, keys in (("unknown", row.keys() - known), ("missing", required - row.keys())):
            if keys:
                key, names = min(keys, key=str), ", ".join(known)
                raise InputError(f"{name}: the key {key} is {kind}; the keys are {names}.")
        values = {key: decoded(row[key], f"{name}.{key}") for key in known if key in row}
        for key, value in values.items():
            if not fits(value, hint := known[key]):
                wanted, kind = getattr(hint, "__name__", hint), type(value).__name__
                raise InputError(f"{name}.{key} must be {wanted}, not {kind}.")
        return cls(**values)


def serializable_enum(cls: E) -> E:
    """Registers an enumeration, whose members fields may hold."""
    ENUMS[cls.__name__] = cls
    return cls


@cache
def hints(cls: Any) -> dict[str, Any]:
    """Returns the types of the fields of a dataclass, by name."""
    known = get_type_hints(cls)
    return {field.name: known[field.name] for field in fields(cls)}


@cache
def without_default(cls: Any) -> frozenset[str]:
    """Returns the names of the fields of a dataclass that have no default."""
    return frozenset(
        each.name for each in fields(cls) if each.default is each.default_factory is MISSING
    )


def fits(value: Any, hint: Any) -> bool:
    """Returns whether a value has the type of a hint; the keys of mappings are not checked."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in inner)
    if origin is None:
        kind: Any = NUMBERS.get(hint, hint)
        return isinstance(value, kind) and isinstance(value, bool) <= (hint is bool)
    if origin is Sequence and isinstance(value, np.ndarray):
        return value.ndim == 1
    if not isinstance(value, origin) or isinstance(value, str):
        return False
    if issubclass(origin, Mapping):
        return all(fits(item, inner[1]) for item in value.values())
    if origin is tuple and inner[-1] is not Ellipsis:
        return len(value) == len(inner) and all(map(fits, value, inner))
    return all(fits(item, inner[0]) for item in value)


def encoded(value: Any, place: str) -> Any:
    """Returns a value as JSON values, or refuses one at a `place` that would lose something."""
    kind = type(value)
    if kind in PLAIN or (kind is float and isfinite(value)):
        return value
    if kind is float:
        return {"$float": struct.pack(">d", value).hex()}
    if kind is list:
        return [encoded(item, place) for item in value]
    if kind is tuple:
        return {"$tuple": [encoded(item, place) for item in value]}
    if kind is bytes:
        return {"$bytes": base64.b64encode(value).decode()}
    if kind in (date, datetime):
        return {f"${kind.__name__}": value.isoformat()}
    if isinstance(value, Mapping):
        items = {key: encoded(item, f"{place}.{key}") for key, item in value.items()}
        if all(type(key) is str and not key.startswith("$") for key in items):
            return items
        return {"$dict": [[encoded(key, place), item] for key, item in items.items()]}
    if isinstance(value, np.ndarray | np.generic | jax.Array | arrays.array):
        return encoded_array(value, place)
    if Serializable.classes.get(kind.__name__) is kind:
        return {f"${kind.__name__}": value.to_dict()}
    if ENUMS.get(kind.__name__) is kind:
        return {f"${kind.__name__}": value.value}
    raise InputError(f"{place}: to_dict cannot keep a value of type {kind.__name__}.")


def encoded_array(value: Any, place: str) -> dict[str, Any]:
    """Returns the dtype, the shape and the bytes of an array, in the order of rows."""
    if isinstance(value, jax.Array) and (
        jnp.issubdtype(value.dtype, jax.dtypes.extended) or not value.is_fully_addressable
    ):
        raise InputError(f"{place}: to_dict keeps arrays of numbers on this process's devices.")
    array = np.asarray(value)
    name = next((x for x in (array.dtype.str, array.dtype.name) if named(x) == array.dtype), None)
    if name is None or array.dtype.hasobject:
        raise InputError(f"{place}: to_dict cannot keep an array of dtype {array.dtype}.")
    data = base64.b64encode(array.tobytes()).decode()
    return {"$array": {"dtype": name, "shape": list(array.shape), "data": data}} | (
        {"$scalar": True} if isinstance(value, np.generic) else {}
    )


def named(name: str) -> np.dtype[Any] | None:
    """Returns the dtype with a name, or None if there is none without Python objects."""
    try:
        dtype = np.dtype(name)
    except TypeError:
        return None
    return None if dtype.hasobject else dtype


def decoded_array(value: Mapping[str, Any]) -> np.ndarray:
    dtype = named(value["dtype"])
    if dtype is None:
        raise ValueError(f"no dtype is called {value['dtype']}")
    data = bytearray(base64.b64decode(value["data"], validate=True))
    array = np.ndarray(value["shape"], dtype, data)
    if array.nbytes != len(data):
        raise ValueError(f"{len(data)} bytes for an array of {array.nbytes}")
    return array


DECODERS: dict[str, Callable[[Any], Any]] = {
    "$float": lambda text: struct.unpack(">d", bytes.fromhex(text))[0],
    "$bytes": lambda text: base64.b64decode(text, validate=True),
    "$date": date.fromisoformat,
    "$datetime": datetime.fromisoformat,
    "$array": decoded_array,
}


def decoded(value: Any, place: str) -> Any:
    """Returns the value of JSON values; `place` is where they stand, for the error."""
    if isinstance(value, list):
        return [decoded(item, place) for item in value]
    if not isinstance(value, Mapping):
        return value
    tags = [key for key in value if isinstance(key, str) and key.startswith("$")]
    if not tags:
        return {key: decoded(item, f"{place}.{key}") for key, item in value.items()}
    tag, content = tags[0], value[tags[0]]
    try:
        if value.keys() == {"$array", "$scalar"}:
            return decoded_array(value["$array"])[()]
        if len(value) > 1:
            raise ValueError(f"an object with {tag} has no other key")
        if tag in DECODERS:
            return DECODERS[tag](content)
        if tag == "$tuple":
            return tuple(decoded(item, place) for item in content)
        if tag == "$dict":
            return {decoded(key, place): decoded(item, place) for key, item in content}
        if tag[1:] in ENUMS:
            return ENUMS[tag[1:]](content)
        return Serializable.classes[tag[1:]].from_dict(content)
    except (KeyError, ValueError, TypeError, struct.error) as error:
        raise InputError(f"{place} is damaged: {error}.") from error
