"""Files of JSON lines: each write appends whole lines, and readers take complete lines only."""

import errno
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rl4p.base.errors import InputError, RunError

LONGEST = 2**26  # bytes of a line


def append(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Appends rows in one write; without room for all of them it appends none.

    Raises:
      RunError: the file cannot be written.
    """
    content = encoded(rows)
    try:
        with path.open("ab", buffering=0) as file:  # one write, so no buffer holds part of a line
            written = file.write(content)
        if written < len(content):  # the rest had no room
            os.truncate(path, path.stat().st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise RunError(f"Cannot write {path}: {error.strerror}.") from error


def encoded(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Returns the lines of rows, with their keys sorted."""
    return "".join(json.dumps(finite(row), sort_keys=True) + "\n" for row in rows).encode()


def read(path: Path, offset: int = 0, *, unfinished: bool = False) -> Iterator[tuple[bytes, int]]:
    """Yields the lines of a file from an offset onwards, each with the offset after it.

    Args:
      unfinished: whether a last line without a line feed counts; the writer of the file may not
        have finished it.

    Raises:
      InputError: a line is longer than `LONGEST`.
      OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        if offset:
            file.seek(offset)
        while line := file.readline(LONGEST):
            if not line.endswith(b"\n") and len(line) == LONGEST:
                raise InputError(f"{path} has a line of more than {LONGEST >> 20} MiB.")
            if not line.endswith(b"\n") and not unfinished:
                return
            offset += len(line)
            yield line, offset


def finite(value: Any) -> Any:
    """Returns the value with non-finite floats as strings, because JSON has none."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
