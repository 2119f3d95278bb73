"""The equality of mathematical answers."""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.util import find_spec

from rl4p.base.types import Episode
from rl4p.configuration.bounds import AboveZero, Positive
from rl4p.data.extraction import Extraction, answer_of
from rl4p.reward.workers import Failed, Workers

FUNCTION = "rl4p.reward.equivalence:grade"


@dataclass(frozen=True, kw_only=True)
class Math:
    r"""A grade of 1 if the answer in the response equals the prompt's answer, else 0.

    The library math-verify compares them as mathematics: 1/2 and ``\frac{1}{2}`` and 0.5,
    ``2\sqrt{2}`` and ``\sqrt{8}``, {1,2} and {2,1}, 1,000 and 1000, ``5\text{ cm}`` and 5, 50% and
    both 0.5 and 50 are equal. Two plain numbers are compared exactly. Words are compared as words.
    A response without an answer gets 0, as does one whose answer is no mathematics.

    Worker processes compare, so that ``9^{9^9}`` cannot stop the run (`workers.py`). A response
    that takes too long or more than 1 GiB of memory is invalid, and costs a restart of its worker.

        pip install 'rl4p[math]'
        python -m rl4p.train term@reward.terms.correct=math ...

    Attributes:
      extract: where the answer is: ``boxed`` in the last ``\boxed{}``, ``hashes`` after the last
        ``####``, ``answer`` in the last ``<answer></answer>``; ``number`` is the last number.
      response_seconds: how long one response may take.
      workers: the number of worker processes.
      deadline: how long all responses of a batch may take, in seconds; None for no limit.
    """

    weight: float = 1.0
    extract: Extraction = "boxed"
    response_seconds: AboveZero = 5.0
    workers: Positive = 2
    deadline: AboveZero | None = 600.0

    def __post_init__(self) -> None:
        if find_spec("math_verify") is None:
            raise ValueError(
                "the library math-verify is not installed: run pip install 'rl4p[math]'."
            )

    def open(self) -> "OpenMath":
        """Returns the term with its worker processes, which start with the first batch."""
        return OpenMath(self)

    def __call__(self, episodes: Sequence[Episode]) -> list[float]:
        with closing(self.open()) as live:
            return live(episodes)


class OpenMath:
    """A `Math` with worker processes."""

    def __init__(self, term: Math):
        self.extract: Extraction = term.extract
        self.workers = Workers(FUNCTION, count=term.workers, seconds=term.response_seconds)

    def __call__(self, episodes: Sequence[Episode]) -> list[float]:
        answers = [answer_of(each, self.extract) for each in episodes]
        rows = [row for row, answer in enumerate(answers) if answer is not None]
        results = self.workers.map(
            [{"answer": answers[row], "reference": episodes[row].prompt.answer} for row in rows]
        )
        self.workers.warn_once(results, "compared")
        grades = [0.0] * len(episodes)
        for row, result in zip(rows, results, strict=True):
            grades[row] = float("nan") if isinstance(result, Failed) else float(result)
        return grades

    def close(self) -> None:
        self.workers.close()
