"""Questions from a file of JSON lines, in GSM8K's format."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl4p.data.files import Files
from rl4p.data.json_line import parsed


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
