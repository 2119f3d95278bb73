"""Data sets whose questions are drawn at random."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration.bounds import Natural, Positive
from rl4p.data.prompting import Prompting

DRAWS = 30  # allowed for each requested question


@dataclass(frozen=True, kw_only=True)
class RandomQuestions(Prompting, ABC):
    """A data set of different random questions: held-out ones, and then training questions.

    Attributes:
      train_size, held_out_size: the numbers of questions.
      seed: the seed of the data set, independent of the run's.
    """

    train_size: Positive = 4096
    held_out_size: Positive = 256
    seed: Natural = 0

    @abstractmethod
    def draw(self, random: np.random.Generator) -> Question | None:
        """Returns a random question, or None if the draw made none."""

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """The questions with different ids, in the order in which they were drawn first.

        Raises:
          InputError: 30 draws for each question made too few different ones.
        """
        random = np.random.Generator(np.random.Philox(self.seed))
        count = self.train_size + self.held_out_size
        questions: dict[str, Question] = {}
        for _ in range(DRAWS * count):
            question = self.draw(random)
            if question is not None:
                questions.setdefault(question.id, question)
            if len(questions) == count:
                return tuple(questions.values())
        raise InputError(
            f"data.train_size + data.held_out_size is {count}, but {DRAWS * count} random draws "
            f"made only {len(questions)} different questions: set smaller sizes, or options of "
            "data that allow more questions."
        )

    def train(self) -> Sequence[Question]:
        return self.questions[self.held_out_size :]

    def held_out(self) -> Sequence[Question]:
        return self.questions[: self.held_out_size]
