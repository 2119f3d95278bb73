"""A line of JSON that anyone may have written."""

import json
from typing import Any

from rl4p.data.fields import Written
from rl4p.errors import InputError


def parsed(line: bytes, place: str) -> dict[str, Any]:
    """Returns the object of a line.

    Raises:
      InputError: the line is not UTF-8, not JSON, or no object; names the place.
    """
    try:
        row = json.loads(line.decode("utf-8-sig"), parse_float=Written.read)
    except UnicodeDecodeError:
        raise InputError(f"{place}: not UTF-8.") from None
    except (ValueError, RecursionError) as error:  # number too long, nesting too deep
        raise InputError(f"{place}: not JSON ({getattr(error, 'msg', error)}).") from None
    if not isinstance(row, dict):
        raise InputError(f"{place}: a JSON object is expected, not {type(row).__name__}.")
    return row
