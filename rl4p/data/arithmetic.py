"""A synthetic task: sums of whole numbers, with solutions worked column by column."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration.bounds import Natural, Positive, Share
from rl4p.data.prompting import Prompting

Digits = Annotated[int, Ge(1), Le(9)]  # the number of pairs must fit into 64 bits


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Prompting):
    """A data set of sums such as `347+585`, worked as `7+5=12 4+8+1=13 3+5+1=9 #### 932`.

    Pairs of numbers with exactly `digits` digits are drawn without replacement. The data set has
    its own seed, so every run has the same questions, and no held-out question is trained on.

    Attributes:
      digits: the number of digits of both numbers.
      train_size, held_out_size: the numbers of sums.
      carelessness: the probability that a worked solution forgets a carry, independently for each
        carry. The reference answer is always right. The shipped policy was trained on such careless
        solutions, which leaves something to learn from rewards.
      seed: the seed of the data set, independent of the run's.
    """

    digits: Digits = 3
    train_size: Positive = 16_384
    held_out_size: Positive = 256
    carelessness: Share = 0.0
    seed: Natural = 0

    def __post_init__(self) -> None:
        if self.train_size + self.held_out_size > self.numbers**2:
            raise InputError(
                f"data.train_size + data.held_out_size is {self.train_size + self.held_out_size}, "
                f"but only {self.numbers**2} sums of {self.digits}-digit numbers exist."
            )

    @property
    def numbers(self) -> int:
        """The number of integers with `digits` digits."""
        return 9 * 10 ** (self.digits - 1)

    def questions(self) -> list[Question]:
        # The order of the draws is part of the data set. If it changed, held-out sums would be
        # sums that the shipped policy was trained on.
        random = np.random.Generator(np.random.Philox(self.seed))
        pairs = random.choice(
            self.numbers**2, self.train_size + self.held_out_size, replace=False, shuffle=True
        )
        lowest = 10 ** (self.digits - 1)
        forgets = random.random((len(pairs), self.digits)) < self.carelessness
        return [
            addition(int(pair) // self.numbers + lowest, int(pair) % self.numbers + lowest, forget)
            for pair, forget in zip(pairs, forgets.tolist(), strict=True)
        ]

    def train(self) -> Sequence[Question]:
        return self.questions()[self.held_out_size :]

    def held_out(self) -> Sequence[Question]:
        return self.questions()[: self.held_out_size]


def addition(first: int, second: int, forget: Sequence[bool]) -> Question:
    """Returns one sum, worked from the units up; a carry is the third number of a column.

    `forget[i]` drops the carry out of column i (units first), and later columns go on without it.
    """
    columns, worked, carry = [], "", 0
    digits = zip(reversed(str(first)), reversed(str(second)), forget, strict=True)
    for a, b, forgotten in digits:
        total = int(a) + int(b) + carry
        columns.append(f"{a}+{b}" + ("+1" if carry else "") + f"={total}")
        worked = str(total % 10) + worked
        carry = 0 if forgotten else total // 10
    worked = str(carry) * (carry > 0) + worked
    question = f"{first}+{second}"
    return Question(
        id=f"arithmetic/{question}",
        question=question,
        answer=str(first + second),
        task="arithmetic",
        solution=f"{' '.join(columns)} #### {worked}",
    )
