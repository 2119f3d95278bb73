"""The record of a run: the files in its folder that trackers mirror.

    config.yaml       the resolved configuration
    environment.json  git commit, device, package versions, ...
    metrics.jsonl     one object per step: {"reward/mean": 0.5, "step": 3, ...}, keys sorted. The
                      evaluation of a step is in the same line; step 0 is before training
    samples.jsonl     one object per sample (`samples.py`): {"step": 3, "prompt": ...,
                      "response": ..., ...}
    questions.jsonl   one object per evaluation and task: {"step": 3, "task": ..., "questions": a
                      digest, "pass_at_1": [1.0, 0.0, ...]}, the scores of each question
    changes.jsonl     what resuming changed, one object per value: {"step": 50, "key": "steps",
                      "before": 80, "after": 120}
    summary.json      the status and the final results of the run

Each line is written in one call, so `kill -9` loses at most the current line, and readers skip an
incomplete line. Floats round-trip exactly. JSON has no non-finite numbers: they are the strings
"NaN", "Infinity" and "-Infinity", and metrics read back as floats.
"""

import base64
import errno
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from rl4p.base.errors import InputError, RunError
from rl4p.configuration.tree import leaves
from rl4p.configuration.yaml_file import read_mapping, signed
from rl4p.runs.folder import replace

LONGEST_LINE = 2**26  # bytes of a line


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Appends rows in one write; without room for all of them it appends none.

    Raises:
      RunError: the file cannot be written.
    """
    content = json_lines(rows)
    try:
        with path.open("ab", buffering=0) as file:  # one write, so no buffer holds part of a line
            written = file.write(content)
        if written < len(content):  # the rest had no room
            os.truncate(path, path.stat().st_size - written)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError as error:
        raise RunError(f"Cannot write {path}: {error.strerror}.") from error


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Returns the lines of rows, with their keys sorted."""
    return "".join(json.dumps(finite(row), sort_keys=True) + "\n" for row in rows).encode()


def read_lines(
    path: Path, offset: int = 0, *, unfinished: bool = False
) -> Iterator[tuple[bytes, int]]:
    """Yields the lines of a file from an offset onwards, each with the offset after it.

    Args:
      unfinished: whether a last line without a line feed counts; the writer of the file may not
        have finished it.

    Raises:
      InputError: a line is longer than `LONGEST_LINE`.
      OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        if offset:
            file.seek(offset)
        while line := file.readline(LONGEST_LINE):
            if not line.endswith(b"\n") and len(line) == LONGEST_LINE:
                raise InputError(f"{path} has a line of more than {LONGEST_LINE >> 20} MiB.")
            if not line.endswith(b"\n") and not unfinished:
                return
            offset += len(line)
            yield line, offset


MOST_LEVELS = 400


def finite(value: Any, levels: int = MOST_LEVELS) -> Any:
    """Returns the value with non-finite floats as strings, because JSON has none.

    Raises:
      ValueError: it is nested in more levels; where Python itself ends depends on its version.
    """
    if isinstance(value, Mapping | list | tuple):
        if not levels:
            raise ValueError(f"it is nested in more than {MOST_LEVELS} levels")
        if isinstance(value, Mapping):
            return {key: finite(item, levels - 1) for key, item in value.items()}
        return [finite(item, levels - 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


SAMPLES = 4
LONGEST_CELL = 400  # characters of a text
CELL = "text-align:left; white-space:pre-wrap; vertical-align:top; padding:2px 12px 2px 0"


def html_of(
    folder: Path,
    summary: Mapping[str, Any] | None,
    metrics: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
) -> str:
    """Returns the results, the plot and the newest samples of a run. All texts are escaped."""
    from rl4p.runs.progress import evaluation_rows  # imports rich

    if summary is None:
        steps = [row["step"] for row in metrics]
        status = f"step {steps[-1]}, not finished" if steps else "not started"
        parts = [f"<p><b>{escape(str(folder))}</b>: {status}</p>"]
    else:
        words = f"{summary['status']} at step {summary['step']}"
        words += f" after {summary['seconds']['total']:.0f} s"
        parts = [f"<p><b>{escape(str(folder))}</b>: {escape(words)}</p>"]
        parts += [table(("held out", "first", "last", "best"), evaluation_rows(summary))]
    curve = folder / "plots" / "learning_curve.png"
    if curve.is_file():
        data = base64.b64encode(curve.read_bytes()).decode()
        parts.append(f'<img alt="learning curve" width="560" src="data:image/png;base64,{data}">')
    columns = ("step", "prompt", "response", "reward")
    rows = [[row.get(name, "") for name in columns] for row in samples[-SAMPLES:]]
    parts += [table(columns, rows)]
    return "".join(parts)


def table(columns: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    """Returns a table, or nothing without rows."""

    def line(tag: str, cells: Iterable[Any]) -> str:
        texts = (str(cell) for cell in cells)
        texts = (
            text if len(text) <= LONGEST_CELL else text[:LONGEST_CELL] + "..." for text in texts
        )
        return "".join(f'<{tag} style="{CELL}">{escape(text)}</{tag}>' for text in texts)

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f"<table><tr>{line('th', columns)}</tr>{body}</table>" if body else ""


TRAINING, EVALUATION = "training", "evaluation"  # the "kind" in environment.json
# Keys of the root that say how a start is watched, and not what is learned.
OF_A_START = (
    "resume",
    "trusted_targets",
    "allow",
    "trust",
    "tracker",
    "checkpoint",
    "samples",
    "debug",
)
OF_A_START += ("plan", "mesh", "hydra")
RESERVE = ".reserve"  # a file in the place of the summary, while the run goes on
ROOM = 2**15  # bytes; more than a summary has
CHANGES = "changes.jsonl"


@dataclass(frozen=True)
class Record:
    """A reader and writer of the record of the run in `folder`.

    Methods that write raise a `RunError` if they fail (a full disk, missing permissions).
    """

    folder: Path

    @property
    def metrics_file(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def samples_file(self) -> Path:
        return self.folder / "samples.jsonl"

    @property
    def questions_file(self) -> Path:
        return self.folder / "questions.jsonl"

    def _repr_html_(self) -> str:
        """Returns the run as HTML, which a notebook shows."""
        return html_of(self.folder, self.summary(), self.metrics(), self.samples())

    def describe(self, config: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Writes the resolved configuration and the environment of the run."""
        text = yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True)
        replace_file(self.folder / "config.yaml", signed("config.yaml", text))
        replace_file(self.folder / "environment.json", _document(environment))

    def config(self) -> dict[str, Any]:
        """Returns the resolved configuration that was recorded last; {} if there is none."""
        path = self.folder / "config.yaml"
        return dict(read_mapping(path)) if path.is_file() else {}

    def log_changes(self, step: int, config: Mapping[str, Any]) -> None:
        """Appends the values of config.yaml that a resumed run changes, from a step on.

        It is called before `describe`, which replaces config.yaml.
        """
        before = self.config()
        old = dict(leaves(before, lists=False)) if before else {}
        new = dict(leaves(config, lists=False))
        rows = [
            {"step": step, "key": key, "before": old.get(key), "after": new.get(key)}
            for key in sorted(old.keys() | new.keys())
            if old and old.get(key) != new.get(key) and key.partition(".")[0] not in OF_A_START
        ]
        if rows:
            append_lines(self.folder / CHANGES, rows)

    def changes(self) -> list[dict[str, Any]]:
        """Returns what resuming changed, in order."""
        return [row for row, _ in _rows(self.folder / CHANGES)]

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Appends the line of a step. `float` must accept the values."""
        row = {name: float(value) for name, value in metrics.items()} | {"step": int(step)}
        append_lines(self.metrics_file, [row])

    def log_samples(self, step: int, samples: Iterable[Mapping[str, Any]]) -> None:
        append_lines(self.samples_file, [{"step": int(step)} | dict(sample) for sample in samples])

    def log_questions(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Appends the scores of each question of an evaluation, one row for each task."""
        append_lines(self.questions_file, [{"step": int(step)} | dict(row) for row in rows])

    def questions(self) -> list[dict[str, Any]]:
        return [row for row, _ in _rows(self.questions_file)]

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the lines of all finished steps; "step" is an int, other values are floats."""
        return self.metrics_from(0)[0]

    def metrics_from(self, offset: int) -> tuple[list[dict[str, Any]], int]:
        """Returns the steps from a byte offset onwards, and the offset after the last of them."""
        rows = []
        for row, end in _rows(self.metrics_file, offset):
            try:
                rows.append({k: int(v) if k == "step" else float(v) for k, v in row.items()})
            except (TypeError, ValueError, OverflowError) as error:
                number = self.metrics_file.read_bytes()[:end].count(b"\n")
                raise InputError(
                    f"{self.metrics_file}, line {number} has a value that is not a number."
                ) from error
            offset = end
        return rows, offset

    def samples(self) -> list[dict[str, Any]]:
        return [row for row, _ in _rows(self.samples_file)]

    def table_of_samples(self, newest: int) -> tuple[list[str], list[list[Any]]]:
        """Returns the columns and the rows of a table of the newest samples.

        Each reward term has a column. Tokens and metadata have none, because they are too long.
        """
        rows = []
        for sample in self.samples()[-newest:]:
            terms = sample.pop("terms", {})
            for name in ("tokens", "metadata"):
                sample.pop(name, None)
            rows.append(sample | terms)
        columns = list(dict.fromkeys(name for row in rows for name in row))
        return columns, [[row.get(name) for name in columns] for row in rows]

    def refuse_gaps(self, step: int) -> None:
        """Refuses metrics without exactly one line for each step from 0 to `step`, in order.

        Raises:
          InputError: a line is missing, or repeated or not in order.
        """
        path = self.metrics_file
        steps = [row["step"] for row in self.metrics() if row["step"] <= step]
        copy = f"replace it by a copy, because a run continues its record (from step {step})."
        if not path.exists():
            raise InputError(f"{path} is missing: {copy}")
        if missing := sorted(set(range(step + 1)) - set(steps)):
            raise InputError(f"{path} has no line of step {spans(missing)}: {copy}")
        for line, (last, this) in enumerate(pairwise(steps), 2):
            if this <= last:
                raise InputError(
                    f"{path}, line {line} is of step {this}, after step {last}: {copy}"
                )

    def truncate_after(self, step: int) -> None:
        """Removes the lines of later steps, which a resumed run repeats, and an incomplete line."""
        for path in (self.metrics_file, self.samples_file, self.questions_file):
            end = 0
            for row, after in _rows(path):
                if row["step"] > step:
                    break
                end = after
            if path.exists():
                os.truncate(path, end)  # one system call, so it is atomic even if the run is killed

    def reserve(self) -> None:
        """Removes the summary of an earlier start, and keeps room on the disk for that of this one.

        A run that is killed then has none, and a run that fills the disk has one.
        """
        replace_file(self.folder / RESERVE, b"0" * ROOM)
        remove(self.folder / "summary.json")

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        remove(self.folder / RESERVE)
        replace_file(self.folder / "summary.json", _document(summary))

    def summary(self) -> dict[str, Any] | None:
        """Returns the summary; None if the run has not ended, or was killed."""
        path = self.folder / "summary.json"
        return json.loads(path.read_text("utf-8")) if path.exists() else None


def replace_file(path: Path, content: str | bytes) -> None:
    """Writes a file atomically.

    Raises:
      RunError: the file cannot be written; the old one stays.
    """
    try:
        replace(path, content)
    except OSError as error:
        raise RunError(f"Cannot write {path}: {error.strerror}.") from error


def remove(path: Path) -> None:
    """Removes a file if it exists."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise RunError(f"Cannot remove {path}: {error.strerror}.") from error


def spans(numbers: Iterable[int]) -> str:
    """Returns integers in order as words, such as "1, 3 to 5"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][-1] == number - 1:
            ranges[-1].append(number)
        else:
            ranges.append([number])
    return ", ".join(f"{x[0]} to {x[-1]}" if len(x) > 1 else f"{x[0]}" for x in ranges)


def _rows(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yields the objects of complete lines from an offset onwards, with the offset after each."""
    for line, end in read_lines(path, offset) if path.exists() else ():
        try:
            row = json.loads(line)
            row["step"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            number = path.read_bytes()[:end].count(b"\n")
            raise InputError(
                f'{path}, line {number} is not a JSON object with the key "step".'
            ) from error
        yield row, end


def _document(value: Mapping[str, Any]) -> str:
    return json.dumps(finite(value), indent=2) + "\n"
