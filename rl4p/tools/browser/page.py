"""Samples as one self-contained HTML page, without a server and without the network.

The texts of the model are data: they stand in a block of JSON that is no script and in which no tag
can end, and the page's script puts them on the page as text. The page's policy (CSP) allows no
other script and no request.
"""

import base64
import hashlib
import html
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl4p.runs.sample import Sample
from rl4p.tools.browser.samples import (
    SHADES,
    grades_of,
    rendered_prompt,
    shade,
    tokens_of,
    turn_lines,
    turn_title,
    visible,
)

HERE = Path(__file__).parent


def page(samples: Sequence[Sample], heading: str, note: str, term: str) -> str:
    """Returns the page.

    Args:
      samples: in the order in which the page shows them first.
      heading: the title.
      note: a line below the title.
      term: the reward term that decides whether an answer is right.
    """
    script = (HERE / "page.js").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    parts = {
        "policy": f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        "heading": html.escape(visible(heading)),
        "note": html.escape(visible(note)),
        "style": (HERE / "page.css").read_text("utf-8"),
        "script": script,
        "data": embedded(
            {
                "term": visible(term),
                "shades": [each.label for each in SHADES],
                "samples": [data_of(sample) for sample in samples],
            }
        ),
    }
    pieces = (
        (HERE / "page.html").read_text("utf-8").split("%%")
    )  # text, name, text, name, ..., text
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def embedded(value: Any) -> str:
    """Returns JSON in which no tag can begin, for a script element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def data_of(sample: Sample) -> dict[str, Any]:
    """Returns what the page's script reads of a sample; null is absent."""
    data = {
        "step": sample.step,
        "id": shown(sample.id),
        "task": shown(sample.task),
        "number": sample.sample,
        "prompt": visible(sample.prompt),
        "rendered": shown(rendered_prompt(sample)),
        "response": visible(sample.response),
        "answer": shown(sample.answer),
        "status": shown(sample.status),
        "length": sample.length,
        "reward": plain(sample.reward),
        "terms": {visible(name): plain(grade) for name, grade in grades_of(sample).items()},
        "advantage": plain(sample.advantage),
        "right": sample.correct,
        "failure": shown(sample.failure),
    }
    if sample.turns:
        data["turns"] = [
            {
                "title": visible(turn_title(number, turn)),
                "text": visible(turn["text"]),
                "lines": [visible(line) for line in turn_lines(turn)],
            }
            for number, turn in enumerate(sample.turns, 1)
        ]
    if tokens := tokens_of(sample):
        columns = {
            "texts": [visible(token.text) for token in tokens],
            "ids": [token.id for token in tokens],
            "logprobs": [plain(token.logprob) for token in tokens],
            "shades": [shade(token.logprob) for token in tokens],
            "loss": [token.in_loss for token in tokens],
            "advantages": [plain(token.advantage) for token in tokens],
        }
        # A column without any value is left out.
        data["tokens"] = {k: v for k, v in columns.items() if any(x is not None for x in v)}
    return data


def shown(text: str | None) -> str | None:
    return None if text is None else visible(str(text))


def plain(x: float | None) -> float | str | None:
    """Returns a number as JSON has it; one that is not finite becomes a text."""
    return x if x is None or math.isfinite(x) else str(x)
