"""Questions from a CSV file."""

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from rl4p.base.errors import InputError
from rl4p.data.files import Files

LONGEST_FIELD = 1 << 30  # characters; Python's own limit is too small for long solutions


@dataclass(frozen=True, kw_only=True)
class CSV(Files):
    r"""A table of texts with a line of column names, and quotes around texts with line breaks.

    `Rows` and `Files` explain the other options.

    Attributes:
      delimiter: the character between two fields, such as `;` or, in YAML, `"\t"`.
    """

    delimiter: str = ","
    task: str = "csv"

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.delimiter) != 1 or self.delimiter in '"\r\n':
            raise ValueError(f"delimiter={self.delimiter!r} must be one character.")

    def rows_of(self, path: Path) -> Iterator[tuple[str, Any]]:
        content = path.read_bytes()
        try:
            # Not splitlines, which also ends lines at U+2028 and others.
            lines = StringIO(content.decode("utf-8-sig"), newline="")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise InputError(f"{path}, line {line}: not UTF-8.") from None
        csv.field_size_limit(LONGEST_FIELD)
        reader = csv.reader(lines, delimiter=self.delimiter, strict=True)
        try:
            names = next(reader, [])
            if not names:
                return
            if repeated := sorted({name for name in names if names.count(name) > 1}):
                raise InputError(f"{path}: the column names {repeated} occur twice.")
            self.columns(names, f"{path}, line 1")
            line = reader.line_num + 1
            for fields in reader:
                place, line = f"{path}, line {line}", reader.line_num + 1
                if not fields:  # an empty line
                    continue
                if len(fields) != len(names):
                    raise InputError(
                        f"{place}: {len(fields)} fields, but {len(names)} columns (data.delimiter "
                        f"is {self.delimiter!r})."
                    )
                yield place, dict(zip(names, fields, strict=True))
        except csv.Error as error:
            raise InputError(f"{path}, line {reader.line_num}: not CSV ({error}).") from None
