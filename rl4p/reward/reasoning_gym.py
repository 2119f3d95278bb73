"""The scores of the library reasoning_gym."""

import json
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec

from rl4p.base.types import Episode
from rl4p.configuration.bounds import AboveZero, Positive, TopShare
from rl4p.data.extraction import Extraction, answer_of
from rl4p.data.fields import whole_number
from rl4p.reward.sandbox import Kind, problem
from rl4p.reward.workers import Failed, Workers

FUNCTION = "rl4p.reward.generator_score:score"
LIBRARY = "reasoning_gym"
ENTRY = ("name", "seed", "size", "index", "options")
MEMORY = 2 * 2**30  # bytes of a process


@dataclass(frozen=True, kw_only=True)
class ReasoningGym:
    """The score that a generator of reasoning_gym gives to an answer, from 0 to 1 (2505.24760).

    Many generators give a part of the score to an answer that is nearly right or badly formatted.
    A response without an answer or with an empty one gets 0. So does an answer for which the scorer
    raises an exception, and one that scores no more than the words `I do not know` or a question
    mark, unless it is the reference. A prompt of other data than `data=reasoning_gym` gets None.

    Several scorers of the library run an answer as Python code. They work in processes in a sandbox
    (`sandbox.py`), which keeps the machine safe. It does not keep the scores safe: a response that
    attacks its scorer can give itself, and later responses of the same process, any score from 0 to
    1. An answer of plain text or numbers cannot do this.

    An answer is invalid if its scorer takes too long or too much memory, or fails for the reference
    answer too, or if the generator makes another question than the prompt has.

        pip install 'rl4p[reasoning-gym]'
        python -m rl4p.train data=reasoning_gym data.name=n_queens reward=reasoning_gym

    Attributes:
      extract: where the answer is (`rl4p.reward.answers`).
      threshold: a score of at least this becomes 1, and one below it 0; None keeps the score.
      sandbox: ``bubblewrap``, or ``none``, which runs the scorers with all rights of this user.
      response_seconds: how long one response may take.
      workers: the number of processes.
      deadline: how long all responses of a batch may take, in seconds; None for no limit.
    """

    weight: float = 1.0
    extract: Extraction | tuple[Extraction, ...] = "answer"
    threshold: TopShare | None = None
    sandbox: Kind = "bubblewrap"
    response_seconds: AboveZero = 10.0
    workers: Positive = 2
    deadline: AboveZero | None = 600.0

    def __post_init__(self) -> None:
        if find_spec(LIBRARY) is None:
            raise ValueError(
                "the library reasoning_gym is not installed: run pip install 'rl4p[reasoning-gym]'."
            )
        if (reason := problem(self.sandbox)) is not None:
            raise ValueError(reason)

    def open(self) -> "OpenReasoningGym":
        """Returns the term with its processes, which start with the first batch."""
        return OpenReasoningGym(self)

    def __call__(self, episodes: Sequence[Episode]) -> list[float | None]:
        with closing(self.open()) as live:
            return live(episodes)


class OpenReasoningGym:
    """A `ReasoningGym` with its processes."""

    def __init__(self, term: ReasoningGym):
        self.term = term
        self.workers = Workers(
            FUNCTION,
            count=term.workers,
            seconds=term.response_seconds,
            memory_bytes=MEMORY,
            sandbox=term.sandbox,
            libraries=[LIBRARY],
        )
        self.close = self.workers.close

    def __call__(self, episodes: Sequence[Episode]) -> list[float | None]:
        grades: list[float | None] = [None] * len(episodes)
        rows, items, unreadable = [], [], []
        for row, episode in enumerate(episodes):
            prompt = episode.prompt
            if not set(ENTRY) <= set(prompt.metadata):
                continue
            answer = answer_of(episode, self.term.extract)
            entry = {key: prompt.metadata[key] for key in ENTRY}
            grades[row] = 0.0
            try:
                entry |= {key: whole_number(entry[key]) for key in ("seed", "size", "index")}
                if isinstance(entry["options"], str):  # JSON, in a table
                    entry["options"] = json.loads(entry["options"])
                json.dumps(entry)
            except (TypeError, ValueError) as error:
                grades[row] = math.nan
                unreadable.append(Failed(reason=f"of the row {prompt.id}: {error}"))
                continue
            if answer is not None and answer.strip():
                rows.append(row)
                items.append({"answer": answer, "question": prompt.question, **entry})
        # An answer that is run as code may have written its result itself.
        results = [
            score
            if isinstance(score, Failed) or (isinstance(score, float) and 0 <= score <= 1)
            else Failed(reason="its scorer returned no number from 0 to 1")
            for score in self.workers.map(items)
        ]
        self.workers.warn_once([*unreadable, *results], "scored")
        threshold = self.term.threshold
        for row, score in zip(rows, results, strict=True):
            if isinstance(score, Failed):
                grades[row] = math.nan
            else:
                grades[row] = score if threshold is None else float(score >= threshold)
        return grades
