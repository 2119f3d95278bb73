"""A run as HTML for notebooks: its results, its learning curve and its newest samples."""

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rl4p.runs.progress import evaluation_rows

SAMPLES = 4
LONGEST = 400  # characters of a text
CELL = "text-align:left; white-space:pre-wrap; vertical-align:top; padding:2px 12px 2px 0"


def html_of(
    folder: Path,
    summary: Mapping[str, Any] | None,
    metrics: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
) -> str:
    """Returns the results, the plot and the newest samples of a run. All texts are escaped."""
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
        texts = (text if len(text) <= LONGEST else text[:LONGEST] + "..." for text in texts)
        return "".join(f'<{tag} style="{CELL}">{escape(text)}</{tag}>' for text in texts)

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in rows)
    return f"<table><tr>{line('th', columns)}</tr>{body}</table>" if body else ""
