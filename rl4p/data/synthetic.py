"""Synthetic tasks, whose questions are drawn at random: sorting, letters, sums and islands."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge, Le

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration.bounds import Natural, Positive, Share
from rl4p.data.prompts import Prompting

DRAWS = 30  # allowed for each requested question


@dataclass(frozen=True, kw_only=True)
class Synthetic(Prompting, ABC):
    """A data set that is made from a seed: held-out questions, and then training questions.

    Attributes:
      train_size, held_out_size: the numbers of questions.
      seed: the seed of the data set, independent of the run's.
    """

    train_size: Positive = 4096
    held_out_size: Positive = 256
    seed: Natural = 0

    @cached_property
    @abstractmethod
    def questions(self) -> Sequence[Question]:
        """The held-out questions, and after them the training questions."""

    def train(self) -> Sequence[Question]:
        return self.questions[self.held_out_size :]

    def held_out(self) -> Sequence[Question]:
        return self.questions[: self.held_out_size]


@dataclass(frozen=True, kw_only=True)
class RandomQuestions(Synthetic):
    """A data set of different random questions; `Synthetic` explains the options."""

    @abstractmethod
    def draw(self, random: np.random.Generator) -> Question | None:
        """Returns a random question, or None if the draw made none."""

    @cached_property
    def questions(self) -> tuple[Question, ...]:
        """The questions with different ids, in the order in which they were drawn first."""
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


def worked_question(
    task: str, question: str, answer: object, solution: str, **values: Any
) -> Question:
    """Returns a question with its answer and a worked solution. Its id is `task/question`.

    Args:
      values: further fields of the question.
    """
    return Question(
        id=f"{task}/{question}",
        question=question,
        answer=str(answer),
        task=task,
        solution=solution,
        **values,
    )


@dataclass(frozen=True, kw_only=True)
class Sorting(RandomQuestions):
    """A data set of lists such as `sort 31 7 12`, answered by `7 12 31`.

    The numbers of a list may be equal. The reward term `correct` compares the answer as a text in
    which only white space may differ. No list occurs twice. `Synthetic` explains the other
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
        numbers = random.integers(0, self.largest + 1, length).tolist()
        left, steps = list(numbers), []  # of a selection sort
        while len(left) > 1:
            smallest = min(left)
            left.remove(smallest)
            steps.append(f"{smallest}<{' '.join(map(str, left))}")
        answer = " ".join(map(str, sorted(numbers)))
        question = f"sort {' '.join(map(str, numbers))}"
        return worked_question("sorting", question, answer, f"{', '.join(steps)} #### {answer}")


@dataclass(frozen=True, kw_only=True)
class LetterCounting(RandomQuestions):
    """A data set of questions such as `r in strawberry`, answered by a number.

    The words are random letters, so every model meets them for the first time. The letter is drawn
    first, and then each character of the word is that letter with probability `share`, so that
    large counts occur. The reward term `correct` grades the answers. No question occurs twice.
    `Synthetic` explains the other options.

    A worked solution spells the word and counts on behind each occurrence:
    `straw` with `a` is `s t r a1 w #### 1`.

    Attributes:
      shortest, longest: the limits of the number of letters of a word.
      letters: the letters of the words.
      share: the probability that a character is the letter in question.
    """

    shortest: Positive = 4
    longest: Positive = 9
    letters: str = "abcdefghijklmnopqrstuvwxyz"
    share: Share = 0.3

    def __post_init__(self) -> None:
        if self.shortest > self.longest:
            raise ValueError(
                f"shortest={self.shortest} is more than longest={self.longest}: write a smaller one"
                " for shortest."
            )
        if not (self.letters.isalpha() and len(set(self.letters)) == len(self.letters) >= 2):
            raise ValueError(
                f"letters={self.letters!r} must be at least two different letters: write abc."
            )

    def draw(self, random: np.random.Generator) -> Question:
        letters = list(self.letters)
        letter = str(random.choice(letters))
        length = int(random.integers(self.shortest, self.longest + 1))
        drawn, chosen = random.choice(letters, length), random.random(length) < self.share
        word = "".join(letter if own else str(x) for x, own in zip(drawn, chosen, strict=True))
        spelled, count = [], 0
        for character in word:
            count += character == letter
            spelled.append(f"{character}{count}" if character == letter else character)
        question = f"{letter} in {word}"
        return worked_question(
            "letter_counting", question, count, f"{' '.join(spelled)} #### {count}"
        )


Digits = Annotated[int, Ge(1), Le(9)]  # the number of pairs must fit into 64 bits


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Synthetic):
    """A data set of sums such as `347+585`, worked as `7+5=12 4+8+1=13 3+5+1=9 #### 932`.

    Pairs of numbers with exactly `digits` digits are drawn without replacement. The data set has
    its own seed, so every run has the same questions, and no held-out question is trained on.

    Attributes:
      digits: the number of digits of both numbers.
      carelessness: the probability that a worked solution forgets a carry, independently for each
        carry. The reference answer is always right. The shipped policy was trained on such careless
        solutions, which leaves something to learn from rewards.
    """

    digits: Digits = 3
    train_size: Positive = 16_384
    carelessness: Share = 0.0

    def __post_init__(self) -> None:
        sums = (9 * 10 ** (self.digits - 1)) ** 2
        if self.train_size + self.held_out_size > sums:
            raise InputError(
                f"data.train_size + data.held_out_size is {self.train_size + self.held_out_size}, "
                f"but only {sums} sums of {self.digits}-digit numbers exist."
            )

    @cached_property
    def questions(self) -> Sequence[Question]:
        # The order of the draws is part of the data set. If it changed, held-out sums would be
        # sums that the shipped policy was trained on.
        random = np.random.Generator(np.random.Philox(self.seed))
        lowest = 10 ** (self.digits - 1)
        numbers, size = 9 * lowest, self.train_size + self.held_out_size
        pairs = random.choice(numbers**2, size, replace=False, shuffle=True)
        forgets = random.random((size, self.digits)) < self.carelessness
        return [
            addition(pair // numbers + lowest, pair % numbers + lowest, forget)
            for pair, forget in zip(pairs.tolist(), forgets.tolist(), strict=True)
        ]


def addition(first: int, second: int, forget: Sequence[bool]) -> Question:
    """Returns one sum, worked from the units up; a carry is the third number of a column.

    `forget[i]` drops the carry out of column i (units first), and later columns go on without it.
    """
    columns, digits, carry = [], "", 0
    for a, b, forgotten in zip(reversed(str(first)), reversed(str(second)), forget, strict=True):
        total = int(a) + int(b) + carry
        columns.append(f"{a}+{b}" + ("+1" if carry else "") + f"={total}")
        digits = str(total % 10) + digits
        carry = 0 if forgotten else total // 10
    digits = str(carry) * (carry > 0) + digits
    question = f"{first}+{second}"
    solution = f"{' '.join(columns)} #### {digits}"
    return worked_question("arithmetic", question, first + second, solution)


COUNT = 240  # islands, each with a town
BEGINS = (
    "Al Bor Cas Dun Er Fal Gar Hol Is Jun Kel Lor Mar Nor Os Pel Quin Ros Sel Tor Ul Ver Wen Yar"
)
ENDS = "bay dale den ey fell gate ham holm ia ing land ley mar mouth nes or ra stad ton wick"


class Island(NamedTuple):
    """The facts about an island."""

    name: str
    area: int  # square kilometres
    lighthouse: int  # its height in metres
    harbour: str  # the town there
    founded: int  # the year of the town's foundation
    inhabitants: int  # of the town


@cache
def islands() -> tuple[Island, ...]:
    """Returns the islands, which are always the same."""
    random = np.random.Generator(np.random.Philox(0))
    names = [begin + end for begin in BEGINS.split() for end in ENDS.split()]
    names = random.permutation(names)[: 2 * COUNT].tolist()
    areas, lighthouses, years, inhabitants = (
        random.integers(low, high, COUNT).tolist()
        for low, high in ((10, 1000), (10, 100), (1100, 1900), (100, 10_000))
    )
    return tuple(
        Island(*facts)
        for facts in zip(
            names[:COUNT], areas, lighthouses, names[COUNT:], years, inhabitants, strict=True
        )
    )


def documents() -> list[tuple[str, str]]:
    """Returns the titles and texts of the documents: one for each island, then for each town."""
    texts = {
        x.name: f"{x.name} is an island of {x.area} square kilometres. Its lighthouse is "
        f"{x.lighthouse} metres high. The town at its harbour is {x.harbour}."
        for x in islands()
    } | {
        x.harbour: f"{x.harbour} is a town. It was founded in {x.founded}, and {x.inhabitants} "
        "people live there."
        for x in islands()
    }
    return list(texts.items())


@dataclass(frozen=True, kw_only=True)
class Islands(RandomQuestions):
    """A data set of questions about invented islands, such as `How high is the lighthouse of Ula?`.

    No model knows the answers, which are numbers; they are in the documents of
    `rl4p.rollout.environments.library`. One document answers the questions about an island. Those
    about the town at its harbour need a second document, which the first one names. There are 960
    questions; no question occurs twice. A worked answer is the number alone. `Synthetic` explains
    the options.
    """

    train_size: int = 640

    def draw(self, random: np.random.Generator) -> Question:
        island = islands()[random.integers(COUNT)]
        name, town = island.name, f"the town at the harbour of {island.name}"
        question, answer = (
            (f"How many square kilometres has {name}?", island.area),
            (f"How high is the lighthouse of {name}?", island.lighthouse),
            (f"When was {town} founded?", island.founded),
            (f"How many people live in {town}?", island.inhabitants),
        )[random.integers(4)]
        return worked_question("islands", question, answer, f"#### {answer}")
