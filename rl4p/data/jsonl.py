"""Questions from a file of JSON lines, in GSM8K's format."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4p.data.files import Files
from rl4p.errors import InputError


@dataclass(frozen=True, kw_only=True)
class JSONLines(Files):
    """A file with one JSON object per line: a question, and an answer ending ``#### <number>``.

    If an answer has no ``####``, its full text is the reference answer. `rl4p.generate` writes such
    files from sampled responses. `Rows` and `Files` explain the options.
    """

    task: str = "jsonl"

    def rows_of(self, path: Path) -> Iterator[tuple[str, Any]]:
        # Not splitlines, which also ends lines at \r: JSON allows one between two values.
        for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
            if line.strip():
                place = f"{path}, line {number}"
                yield place, parsed(line, place)


def parsed(line: bytes, place: str) -> dict[str, Any]:
    """Returns the object of a line.

    Raises:
      InputError: the line is not UTF-8, not JSON, or no object; names the place.
    """
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise InputError(f"{place}: not UTF-8.") from None
    except (ValueError, RecursionError) as error:  # number too long, nesting too deep
        raise InputError(f"{place}: not JSON ({getattr(error, 'msg', error)}).") from None
    if not isinstance(row, dict):
        raise InputError(f"{place}: a JSON object is expected, not {type(row).__name__}.")
    return row
