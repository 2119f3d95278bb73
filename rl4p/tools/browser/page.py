"""Samples as one self-contained HTML page, without a server and without the network.

The texts of the model are data: they stand in a block of JSON that is no script and in which no tag
can end, and the page's script puts them on the page as text. The page's policy (CSP) allows no
other script and no request.
"""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from rl4p.runs.sample import Sample
from rl4p.tools.browser.beside import render
from rl4p.tools.browser.samples import (
    SHADES,
    grades_of,
    shade,
    tokens_of,
    turn_lines,
    turn_title,
    visible,
)

HERE = Path(__file__).parent


def page(samples: Sequence[Sample], heading: str, note: str, term: str) -> str:
    """Returns the page, which shows the samples in their order at first.

    Args:
      term: the reward term that decides whether an answer is right.
    """
    script = (HERE / "page.js").read_text("utf-8")
    data = {
        "term": term,
        "shades": [each.label for each in SHADES],
        "samples": [data_of(sample) for sample in samples],
    }
    return render(
        HERE / "page.html",
        digest=Markup(base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()),
        heading=heading,
        note=note,
        style=Markup((HERE / "page.css").read_text("utf-8")),
        script=Markup(script),
        data=shown(data),
    )


def data_of(sample: Sample) -> dict[str, Any]:
    """Returns what the page's script reads of a sample; null is absent."""
    data = {
        "step": sample.step,
        "id": sample.id,
        "task": sample.task,
        "number": sample.sample,
        "prompt": sample.prompt,
        "rendered": (sample.tokens or {}).get("prompt"),  # in its chat template
        "response": sample.response,
        "answer": sample.answer,
        "status": sample.status,
        "length": sample.length,
        "reward": sample.reward,
        "terms": grades_of(sample),
        "advantage": sample.advantage,
        "right": sample.correct,
        "failure": sample.failure,
    }
    if sample.turns:
        data["turns"] = [
            {
                "title": turn_title(number, turn),
                "text": turn["text"],
                "lines": [*map(list, turn_lines(turn))],
            }
            for number, turn in enumerate(sample.turns, 1)
        ]
    if tokens := tokens_of(sample):
        columns = {
            "texts": [token.text for token in tokens],
            "ids": [token.id for token in tokens],
            "logprobs": [token.logprob for token in tokens],
            "shades": [shade(token.logprob) for token in tokens],
            "loss": [token.in_loss for token in tokens],
            "advantages": [token.advantage for token in tokens],
        }
        # A column without any value is left out.
        data["tokens"] = {k: v for k, v in columns.items() if any(x is not None for x in v)}
    return data


def shown(value: Any) -> Any:
    """Returns values of JSON with visible texts; a number that is not finite becomes a text."""
    if isinstance(value, Mapping):
        return {visible(key): shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return visible(str(value)) if isinstance(value, str) else value
