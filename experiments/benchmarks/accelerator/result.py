"""The result of a case: rows of a table, kept in a file from the first row on."""

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(kw_only=True)
class Result:
    """The rows that a case has measured.

    Attributes:
      path: the JSON file; every new row is written at once, so a case that is killed keeps them.
      tiny: whether the sizes are small.
    """

    path: Path
    tiny: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)

    def add(self, **row: Any) -> None:
        """Adds a row: values by column."""
        self.rows.append({})
        self.more(**row)

    def more(self, **row: Any) -> None:
        """Adds columns to the last row."""
        self.rows[-1] |= row
        print(f"{time.monotonic() - self.began:.0f} s: {json.dumps(row)}", flush=True)
        self.write(status="running")

    def write(self, **more: Any) -> None:
        write_json(self.path, {"tiny": self.tiny, "rows": self.rows, **more})


def write_json(path: Path, content: Any) -> None:
    """Replaces a JSON file as a whole."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Returns the content of a JSON file, or {} if there is none."""
    return json.loads(path.read_text()) if path.is_file() else {}
