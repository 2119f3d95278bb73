"""Crossword clues, from a file of JSON lines or from facts in the package."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration.bounds import Natural, Positive
from rl4p.configuration.capability import ReadPath
from rl4p.data.crossword_answer import canonical
from rl4p.data.crossword_facts import clues
from rl4p.data.jsonl import JSONLines
from rl4p.data.prompting import Prompting
from rl4p.data.rows import digest

LENGTH_AT_END = re.compile(r"\(\s*\d[\d\s,.-]*(letters?)?\s*\)\s*$")


@dataclass(frozen=True, kw_only=True)
class Crossword(Prompting):
    """A data set of crossword clues, each with one answer.

    A file has one JSON object per line, with the fields `clue` and `answer`. Without a file, clues
    are made from facts: capitals, chemical elements, numbers in words, and months, days, planets
    and Greek letters in their order. There are about 370, enough to try a recipe.

    Attributes:
      path: the file to train on; None uses the facts.
      held_out_path: a file whose rows are all used for evaluation.
      held_out_size: without a `held_out_path`, the number of clues held out of training; None is
        256 of a file and 64 of the facts.
      question_key, answer_key: the names of the fields.
      letters: whether to put the number of letters after a clue that does not end with one:
        "Capital of Norway (4 letters)".
      seed: the seed by which facts are ordered and held out; the run's seed orders them again.
    """

    path: ReadPath | None = None
    held_out_path: ReadPath | None = None
    held_out_size: Positive | None = None
    question_key: str = "clue"
    answer_key: str = "answer"
    letters: bool = True
    seed: Natural = 0

    def __post_init__(self) -> None:
        if self.held_out_path is not None and self.path is None:
            raise ValueError("held_out_path needs a path, the file to train on: set it too.")
        if self.path is not None and self.seed != 0:
            raise ValueError("seed orders the clues of the package only: leave it out with a path.")
        if self.path is None and self.kept_back >= len(list(clues())):
            raise ValueError(
                f"held_out_size={self.kept_back} holds out all {len(list(clues()))} clues of the "
                "package: set a smaller value, or set path."
            )
        if self.path is not None:
            _ = self.file  # its construction refuses options that do not go together

    @property
    def kept_back(self) -> int:
        """The number of the package's clues that are held out."""
        return 64 if self.held_out_size is None else self.held_out_size

    @cached_property
    def file(self) -> JSONLines:
        return JSONLines(
            path=self.path or "",
            held_out_path=self.held_out_path,
            held_out_size=self.held_out_size,
            question_key=self.question_key,
            answer_key=self.answer_key,
            reference_key=self.answer_key,
            task="crossword",
        )

    @cached_property
    def facts(self) -> list[Question]:
        rows = list(clues())
        order = np.random.Generator(np.random.Philox(self.seed)).permutation(len(rows))
        return [self.prepared(fact(*rows[int(i)])) for i in order]

    def train(self) -> Sequence[Question]:
        if self.path is None:
            return self.facts[self.kept_back :]
        return [self.prepared(row) for row in self.file.train()]

    def held_out(self) -> Sequence[Question]:
        if self.path is None:
            return self.facts[: self.kept_back]
        return [self.prepared(row) for row in self.file.held_out()]

    def prepared(self, row: Question) -> Question:
        """Returns the row with the length of its answer in the clue, and a solution in tags."""
        letters = len(canonical(row.answer))
        if letters == 0:
            raise InputError(
                f"The answer {row.answer!r} to the clue {row.question!r} has no letters A-Z: "
                "correct the row, or leave it out."
            )
        clue = row.question.strip()
        if self.letters and not LENGTH_AT_END.search(clue):
            clue += f" ({letters} letters)"
        return replace(row, question=clue, solution=f"<answer>{row.answer}</answer>")


def fact(clue: str, answer: str) -> Question:
    return Question(
        id=f"crossword/{digest(clue)}", question=clue, answer=answer.upper(), task="crossword"
    )
