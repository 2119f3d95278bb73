r"""Questions from a file of JSON lines in MATH's format, whose answers stand in ``\boxed{}``."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.data.extraction import extract
from rl4p.data.jsonl import JSONLines


@dataclass(frozen=True, kw_only=True)
class Math(JSONLines):
    r"""A file with one JSON object per line: a problem, and a solution with a ``\boxed{}`` answer.

    The reference answer is the content of the last box of the solution (`rl4p.data.box`),
    or the text of `reference_key` if that is set. `JSONLines` explains the other options.
    """

    question_key: str = "problem"
    answer_key: str = "solution"
    task: str = "math"

    def train(self) -> Sequence[Question]:
        return [self.with_reference(row) for row in super().train()]

    def held_out(self) -> Sequence[Question]:
        return [self.with_reference(row) for row in super().held_out()]

    def with_reference(self, row: Question) -> Question:
        """Returns the row with the boxed answer of its solution.

        Raises:
          InputError: the solution has no box, and `reference_key` is not set.
        """
        if self.reference_key is not None:
            return row
        answer = extract(row.solution or "", "boxed")
        if not answer:
            raise InputError(
                f"data.path={self.path}: the solution of {row.question[:60]!r} has no answer in "
                "\\boxed{}: name a field with the answer in data.reference_key."
            )
        return replace(row, answer=answer)
