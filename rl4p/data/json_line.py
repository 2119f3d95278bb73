"""A line of JSON that anyone may have written."""

import json
import shlex
from typing import Any

from rl4p.base.errors import InputError
from rl4p.data.fields import Written


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
        if line.strip() in (b"[", b"{"):  # indented, over several lines
            refuse_several_lines(line, place)
        raise InputError(f"{place}: not JSON ({getattr(error, 'msg', error)}).") from None
    if not isinstance(row, dict):
        if isinstance(row, list) and row and isinstance(row[0], dict):
            refuse_several_lines(line, place)
        raise InputError(f"{place}: a JSON object is expected, not {type(row).__name__}.")
    return row


def refuse_several_lines(line: bytes, place: str) -> None:
    """Refuses the first line of a JSON array, or of an object that continues on other lines.

    Raises:
      InputError: names the command that writes an object on each line.
    """
    start = line.decode("utf-8-sig", "replace").strip()[:1]
    file, _, number = place.rpartition(", line ")
    if number == "1" and start in ("[", "{"):
        what, pattern = ("a JSON array", ".[]") if start == "[" else ("JSON of several lines", ".")
        change = (
            f"jq -c {shlex.quote(pattern)} {shlex.quote(file)} > {shlex.quote(f'{file}.jsonl')}"
        )
        raise InputError(f"{file} is {what}, and one object a line is expected: write {change}")
