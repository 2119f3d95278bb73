"""The values of Arrow columns, with the digits that their types have."""

from collections.abc import Callable
from typing import Any

import numpy as np

Convert = Callable[[Any], Any]


def converter(kind: Any) -> Convert | None:
    """Returns a function that shortens the values of an Arrow type; None if none needs it.

    Python's floats have 64 bits, so 0.1 of a column with 32 or 16 bits would become
    0.10000000149011612. The function returns the float with the fewest digits that the column
    cannot tell from its value.
    """
    from pyarrow import types

    if types.is_float32(kind):
        return lambda value: float(str(np.float32(value)))
    if types.is_float16(kind):
        return lambda value: float(str(np.float16(value)))
    if types.is_dictionary(kind):
        return converter(kind.value_type)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = converter(kind.value_type)
        return inner and (lambda values: [each if each is None else inner(each) for each in values])
    if types.is_map(kind):
        inner = converter(kind.item_type)
        return inner and (lambda pairs: [(k, v if v is None else inner(v)) for k, v in pairs])
    if types.is_struct(kind):
        return of_fields({field.name: field.type for field in kind})
    return None


def of_fields(kinds: dict[str, Any]) -> Convert | None:
    """Returns a function that shortens the values of a mapping whose fields have these types."""
    converters = {name: each for name, kind in kinds.items() if (each := converter(kind))}
    if not converters:
        return None

    def convert(row: dict[str, Any]) -> dict[str, Any]:
        return row | {
            name: each(row[name]) for name, each in converters.items() if row[name] is not None
        }

    return convert
