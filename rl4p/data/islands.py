"""A synthetic task: questions about invented islands, whose answers are in documents."""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np

from rl4p.base.types import Question
from rl4p.data.random_questions import RandomQuestions

COUNT = 240  # islands, each with a town
BEGINS = (
    "Al Bor Cas Dun Er Fal Gar Hol Is Jun Kel Lor Mar Nor Os Pel Quin Ros Sel Tor Ul Ver Wen Yar"
)
ENDS = "bay dale den ey fell gate ham holm ia ing land ley mar mouth nes or ra stad ton wick"


class Island(NamedTuple):
    """The facts about an island.

    Attributes:
      area: square kilometres.
      lighthouse: the height of its lighthouse, in metres.
      harbour: the town at its harbour.
      founded, inhabitants: the year of the town's foundation, and its inhabitants.
    """

    name: str
    area: int
    lighthouse: int
    harbour: str
    founded: int
    inhabitants: int


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
    """Returns the titles and texts of the documents: one for each island, and for each town."""
    of_islands = [
        (
            x.name,
            f"{x.name} is an island of {x.area} square kilometres. Its lighthouse is "
            f"{x.lighthouse} metres high. The town at its harbour is {x.harbour}.",
        )
        for x in islands()
    ]
    of_towns = [
        (
            x.harbour,
            f"{x.harbour} is a town. It was founded in {x.founded}, and {x.inhabitants} people "
            "live there.",
        )
        for x in islands()
    ]
    return of_islands + of_towns


@dataclass(frozen=True, kw_only=True)
class Islands(RandomQuestions):
    """A data set of questions about invented islands, such as `How high is the lighthouse of Ula?`.

    No model knows the answers, which are numbers; they are in the documents of
    `rl4p.rollout.environments.library`. One document answers the questions about an island. Those
    about the town at its harbour need a second document, which the first one names. There are 960
    questions; no question occurs twice. A worked answer is the number alone. `RandomQuestions`
    explains the options.
    """

    train_size: int = 640

    def draw(self, random: np.random.Generator) -> Question:
        island = islands()[random.integers(COUNT)]
        question, answer = questions_about(island)[random.integers(4)]
        return Question(
            id=f"islands/{question}",
            question=question,
            answer=str(answer),
            task="islands",
            solution=f"#### {answer}",
        )


def questions_about(island: Island) -> list[tuple[str, int]]:
    """Returns the questions about an island and the town at its harbour, with their answers."""
    name, town = island.name, f"the town at the harbour of {island.name}"
    return [
        (f"How many square kilometres has {name}?", island.area),
        (f"How high is the lighthouse of {name}?", island.lighthouse),
        (f"When was {town} founded?", island.founded),
        (f"How many people live in {town}?", island.inhabitants),
    ]
