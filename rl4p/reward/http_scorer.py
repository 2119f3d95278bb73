"""The scores of a server."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rl4p.base.http import InvalidResponseError
from rl4p.base.types import Episode
from rl4p.configuration.bounds import AboveZero, Positive
from rl4p.configuration.capability import Address, Variable
from rl4p.reward.endpoint import Endpoint, NoAnswer
from rl4p.reward.ungradable import Ungradable, with_nan

log = logging.getLogger(__name__)

INVALID = float("nan")


@dataclass(frozen=True, kw_only=True)
class HttpScorer:
    """The scores that a server of yours gives, unchanged.

    Each request is a POST of ``{"rows": [{"question": ..., "answer": ..., "response": ..., "task":
    ..., "metadata": {...}}, ...]}``, and its answer ``{"scores": [0.5, null, ...]}``, one for each
    row. ``null`` says that the score does not apply to a row. The rows of a request that fails for
    good are invalid, as is a row whose score is no finite number (`endpoint.py`).

        python -m rl4p.train +term@reward.terms.mine=http_scorer \
            reward.terms.mine.url=http://localhost:8000/score

    Attributes:
      url: the address.
      key_variable: the environment variable with the API key, which is sent as a bearer token.
      batch_size: the most rows of a request.
      timeout_seconds: the deadline of one request.
      attempts: how often a request is sent before its rows are invalid.
      concurrency: the number of requests at a time.
      deadline: how long all responses of a batch may take, in seconds; None for no limit.
    """

    weight: float = 1.0
    url: Address
    key_variable: Variable | None = None
    batch_size: Positive = 32
    timeout_seconds: AboveZero = 60.0
    attempts: Positive = 3
    concurrency: Positive = 4
    deadline: AboveZero | None = 600.0

    def __post_init__(self) -> None:
        _ = self.endpoint

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(
            url=self.url,
            key_variable=self.key_variable,
            timeout_seconds=self.timeout_seconds,
            attempts=self.attempts,
            concurrency=self.concurrency,
        )

    def __call__(self, episodes: Sequence[Episode]) -> list[float | None]:
        unsendable = [no_json(episode) for episode in episodes]
        rows = [row_of(x) for x, reason in zip(episodes, unsendable, strict=True) if not reason]
        parts = [rows[i : i + self.batch_size] for i in range(0, len(rows), self.batch_size)]

        def read(index: int, answer: Any) -> list[float | None]:
            return scores_in(answer, len(parts[index]))

        grades: list[float | None] = []
        results = self.endpoint.send([{"rows": part} for part in parts], read)
        for part, scores in zip(parts, results, strict=True):
            if isinstance(scores, NoAnswer):
                log.warning("%d responses have no score: %s.", len(part), scores.reason)
                grades += [INVALID] * len(part)
            else:
                grades += scores
        sent = iter(grades)
        return with_nan(
            [Ungradable(reason) if reason else next(sent) for reason in unsendable], "sent"
        )


def no_json(episode: Episode) -> str | None:
    """Returns why the metadata of a prompt cannot be sent; None if it can."""
    if episode.prompt.metadata:
        try:
            json.dumps(dict(episode.prompt.metadata))
        except (TypeError, ValueError) as error:
            return f"of the metadata of the row {episode.prompt.id}: {error}"
    return None


def row_of(episode: Episode) -> dict[str, Any]:
    """Returns the row of a request."""
    prompt = episode.prompt
    return {
        "question": prompt.question,
        "answer": prompt.answer,
        "response": episode.response,
        "task": prompt.task,
        "metadata": dict(prompt.metadata),
    }


def scores_in(answer: Any, rows: int) -> list[float | None]:
    """Returns the scores of an answer.

    Raises:
      InvalidResponseError: they are not one for each row.
    """
    scores = answer.get("scores") if isinstance(answer, dict) else None
    if not isinstance(scores, list):
        raise InvalidResponseError('an answer without "scores"')
    if len(scores) != rows:
        raise InvalidResponseError(f"{len(scores)} scores for {rows} rows")
    return [None if score is None else finite(score) for score in scores]


def finite(score: Any) -> float:
    """Returns a number as a float, and nan for anything else."""
    if not isinstance(score, int | float) or isinstance(score, bool):
        return INVALID
    try:
        return float(score)
    except OverflowError:
        return INVALID
