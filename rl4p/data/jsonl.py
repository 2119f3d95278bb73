"""Questions from a file of JSON lines, in GSM8K's format."""

import hashlib
import json
import logging
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from rl4p.configuration.bounds import Positive
from rl4p.data.answer import final_answer
from rl4p.errors import InputError
from rl4p.types import Question

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class JSONLines:
    """A file with one JSON object per line: a question, and an answer ending ``#### <number>``.

    If an answer has no ``####``, its full text is the reference answer. `rl4p.generate` writes such
    files from sampled responses.

    Attributes:
      path: the file to train on.
      held_out_path: the file to evaluate on. `evaluation.prompts` limits how much of it is used.
      held_out_size: without a `held_out_path`, the number of rows of `path` that are held out of
        training for evaluation, chosen by the hash of the question; None is 256.
      question_key, answer_key: the names of the fields.
      reference_key: a field with the reference answer alone; None takes it from the answer.
      several_answers: whether a question may have several rows, as samples of a policy do. All of
        its answers are then trained on; an evaluation asks it once. Otherwise the first row of a
        question counts.
      task: the task name in the metrics.
      system_prompt: a text before every question; None for none.
    """

    path: str
    held_out_path: str | None = None
    held_out_size: Positive | None = None
    question_key: str = "question"
    answer_key: str = "answer"
    reference_key: str | None = None
    several_answers: bool = False
    task: str = "jsonl"
    system_prompt: str | None = None

    def __post_init__(self) -> None:
        if self.held_out_path is not None and self.held_out_size is not None:
            raise ValueError(
                "held_out_size cannot be combined with held_out_path: leave it out "
                "(evaluation.prompts sets how many questions of that file are used)."
            )

    @cached_property
    def rows(self) -> list[Question]:
        return self.read("path", self.path)

    def train(self) -> Sequence[Question]:
        rows = self.rows
        if self.held_out_path is not None:
            return rows
        held_out = {row.question for row in self.held_out()}
        rows = [row for row in rows if row.question not in held_out]
        if not rows:
            raise InputError(
                f"data.held_out_size={self.kept_back} holds out every row of {self.path}: "
                "set a smaller value, or set data.held_out_path."
            )
        return rows

    def held_out(self) -> Sequence[Question]:
        if self.held_out_path is not None:
            rows = self.read("held_out_path", self.held_out_path)
            return first_of_each(rows, lambda row: row.question)
        asked = first_of_each(self.rows, lambda row: row.question)
        return sorted(asked, key=lambda row: row.id)[: self.kept_back]

    @property
    def kept_back(self) -> int:
        """The number of rows of `path` that are held out."""
        return 256 if self.held_out_size is None else self.held_out_size

    def read(self, key: str, name: str) -> list[Question]:
        path = Path(name)
        try:
            lines = path.read_bytes().split(b"\n")
        except OSError as error:
            raise InputError(
                f"data.{key}={name} cannot be read: {error.strerror or error}."
            ) from None
        rows = [self.parse(path, i, line) for i, line in enumerate(lines, 1) if line.strip()]
        if not rows:
            raise InputError(f"data.{key}={name} has no rows.")
        if self.several_answers:
            distinct = first_of_each(rows, lambda row: (row.question, row.solution))
            what = "rows skipped"
        else:
            # The first row of a question, at the place of its last: saved runs depend on it.
            distinct = list({row.id: row for row in reversed(rows)}.values())[::-1]
            what = "questions skipped (data.several_answers=true keeps their other answers)"
        if len(distinct) < len(rows):
            log.warning("%s: %d repeated %s.", path, len(rows) - len(distinct), what)
        # The first answer of a question has the id that the question has without other answers.
        first = {row.id: row for row in reversed(distinct)}
        return [row if row is first[row.id] else with_own_id(row) for row in distinct]

    def parse(self, path: Path, line_number: int, line: bytes) -> Question:
        where = f"{path}, line {line_number}"
        try:
            row = json.loads(line.decode("utf-8-sig"))
        except UnicodeDecodeError:
            raise InputError(f"{where}: not UTF-8.") from None
        except (ValueError, RecursionError) as error:  # number too long, nesting too deep
            raise InputError(f"{where}: not JSON ({getattr(error, 'msg', error)}).") from None
        if not isinstance(row, dict):
            raise InputError(f"{where}: a JSON object is expected, not {type(row).__name__}.")
        for key in filter(None, (self.question_key, self.answer_key, self.reference_key)):
            if not isinstance(row.get(key), str) or not row[key].strip():
                raise InputError(
                    f'{where}: no text under "{key}": the row has the fields {sorted(row)} '
                    "(set data.question_key, data.answer_key and data.reference_key)."
                )
            try:
                row[key].encode()
            except UnicodeEncodeError:  # a lone surrogate, which JSON allows
                raise InputError(f'{where}: not UTF-8 under "{key}".') from None
        question, solution = row[self.question_key], row[self.answer_key]
        if self.reference_key is not None:
            reference = row[self.reference_key].strip()
        else:
            reference = final_answer(solution)
        return Question(
            id=digest(question),
            question=question,
            answer=solution.strip() if reference is None else reference,
            task=self.task,
            solution=solution,
        )


def first_of_each(
    rows: Sequence[Question], identity: Callable[[Question], Hashable]
) -> list[Question]:
    """Returns the rows, in their order, without those whose identity an earlier row has."""
    found: dict[Hashable, Question] = {}
    for row in rows:
        found.setdefault(identity(row), row)
    return list(found.values())


def with_own_id(row: Question) -> Question:
    """Returns the row with an id that depends on its answer too."""
    return replace(row, id=digest(f"{row.question}\0{row.solution}"))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
