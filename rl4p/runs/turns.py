"""The turns of an episode as values of JSON, in `Sample.turns`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rl4p.base.types import Episode, Turn
from rl4p.data.messages import ParsedCall, tool_calls

NUMBERS = ("tokens", "reward", "sampling_seconds", "environment_seconds")


def rows_of_turns(episode: Episode, versions: np.ndarray) -> list[dict[str, Any]] | None:
    """Returns the turns of an episode, each with its calls of tools; None for a single response.

    Args:
      versions: the weight version of each token that the policy chose, in all turns.
    """
    rows, start = [], 0
    for turn in episode.turns:
        own = np.unique(versions[start : start + turn.tokens])
        start += turn.tokens
        calls = [
            {"name": call.name, "arguments": dict(call.arguments)}
            if isinstance(call, ParsedCall)
            else {"malformed": call.reason}
            for call in tool_calls(turn.text)
        ]
        row = {
            "text": turn.text,
            "messages": [dict(message) for message in turn.messages],
            "calls": calls,
            "metrics": {name: float(number) for name, number in turn.metrics.items()},
            "versions": own.tolist(),
            "state": None if turn.state is None else str(turn.state),
        }
        row |= {name: round(getattr(turn, name), 4) for name in NUMBERS}
        rows.append({name: value for name, value in row.items() if value not in (None, [], {})})
    return rows or None


def turns_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Turn, ...]:
    """Returns the turns of the rows of a sample (`sample.check_turn`), as graders read them."""
    return tuple(
        Turn(
            text=row["text"],
            tokens=row.get("tokens", 0),
            messages=tuple(row.get("messages", ())),
            metrics=row.get("metrics", {}),
            state=row.get("state"),
            **{name: float(row.get(name, 0)) for name in NUMBERS[1:]},
        )
        for row in rows
    )
