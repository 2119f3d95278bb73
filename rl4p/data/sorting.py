"""A synthetic task: numbers to sort."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from rl4p.base.types import Question
from rl4p.configuration.bounds import Positive
from rl4p.data.random_questions import RandomQuestions


@dataclass(frozen=True, kw_only=True)
class Sorting(RandomQuestions):
    """A data set of lists such as `sort 31 7 12`, answered by `7 12 31`.

    The numbers of a list may be equal. The reward term `correct` compares the answer as a text in
    which only white space may differ. No list occurs twice. `RandomQuestions` explains the other
    options.

    A worked solution takes the smallest of the remaining numbers until one is left, and then gives
    the list: `7<31 12, 12<31 #### 7 12 31`.

    Attributes:
      shortest, longest: the limits of the length of a list.
      largest: the largest number; the smallest is 0.
    """

    shortest: Annotated[int, Ge(2), Le(100)] = 3
    longest: Annotated[int, Ge(2), Le(100)] = 5
    largest: Positive = 99

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise ValueError(
                f"shortest={self.shortest} is more than longest={self.longest}: write a smaller one"
                " for shortest."
            )

    def draw(self, random: np.random.Generator) -> Question:
        length = int(random.integers(self.shortest, self.longest + 1))
        return sorting(random.integers(0, self.largest + 1, length).tolist())


def sorting(numbers: Sequence[int]) -> Question:
    """Returns the question of a list of numbers, worked by selection sort."""
    left, steps = list(numbers), []
    while len(left) > 1:
        smallest = min(left)
        left.remove(smallest)
        steps.append(f"{smallest}<{' '.join(map(str, left))}")
    answer = " ".join(map(str, sorted(numbers)))
    question = f"sort {' '.join(map(str, numbers))}"
    return Question(
        id=f"sorting/{question}",
        question=question,
        answer=answer,
        task="sorting",
        solution=f"{', '.join(steps)} #### {answer}",
    )
