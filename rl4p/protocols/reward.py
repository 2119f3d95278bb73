"""The protocols of reward terms, and of rewards that grade texts alone."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from rl4p.base.types import Episode, Rewards

Grades = Sequence[float | None]  # None: the term does not apply; nan or infinite: it failed


@runtime_checkable
class TextReward(Protocol):
    """A reward that grades texts without their arrays (`reward=weighted`, `reward=router`)."""

    terms: Mapping[str, Any]  # the terms by name; every batch of rewards has these terms
    whole_groups: bool  # whether a term compares the samples of a group: none is then divided

    def grade_texts(
        self, episodes: Sequence[Episode], group_ids_B: np.ndarray | None = None
    ) -> Rewards:
        """Grades episodes; without `group_ids_B`, the samples of a prompt are a group.

        Raises:
          RunError: more samples are invalid than `max_invalid` allows.
        """
        ...

    def start(
        self, episodes: Sequence[Episode], group_ids_B: np.ndarray | None, key: str
    ) -> Callable[[], Rewards]:
        """Starts to grade and returns a function that waits for the result of `grade_texts`.

        Args:
          key: the configuration key of this reward, for messages.
        """
        ...

    def close(self) -> None:
        """Closes the terms that `open` has opened."""
        ...


class RewardTerm(Protocol):
    """One weighted term of `reward=weighted`.

    A term may also be a `TimedTerm`, a `ByTurn`, a `GroupTerm` and an `OpensTerm`.
    """

    weight: float

    def __call__(self, episodes: Sequence[Episode]) -> Grades | Awaitable[Grades]:
        """Returns one grade per row; the method may be `async def`.

        None means that the term does not apply to the row: it adds nothing to the total and is
        left out of the mean of the term. A non-finite number means that the row could not be
        graded, which makes the sample invalid. So does an exception, for all rows of the call.
        """
        ...


@runtime_checkable
class TimedTerm(Protocol):
    """A term with a deadline of its own, in the place of `reward.deadline`.

    Attributes:
      deadline: the seconds that a call may take. A term with a deadline is called in a thread of
        its own, beside the other terms. With None it is called in the thread that grades, usually
        the main thread, and may take any time.
    """

    deadline: float | None


@runtime_checkable
class ByTurn(Protocol):
    """A term whose grade is the sum of grades of an episode's turns."""

    weight: float

    def by_turn(self, episode: Episode) -> Sequence[float]:
        """Returns the grade of each turn."""
        ...


class GroupTerm(Protocol):
    """A term that compares the samples of a group; it sees all of them at once."""

    whole_groups: Literal[True]

    weight: float

    def __call__(
        self, groups: Sequence[Sequence[Episode]]
    ) -> Sequence[Grades] | Awaitable[Sequence[Grades]]:
        """Returns, for each group, a grade for each of its episodes, in their order."""
        ...


@runtime_checkable
class OpensTerm(Protocol):
    """A term with processes, connections or other things that live as long as the run.

    `open` returns a live object, which is called in the place of the term. The first grading opens
    it, in each process of the run. A term that is only planned or checked is never opened.
    """

    def open(self) -> "OpenTerm":
        """Returns the live term.

        Raises:
          RunError: it cannot be opened here; the message says what is missing.
        """
        ...


class OpenTerm(Protocol):
    """A live term."""

    def __call__(self, episodes: Any) -> Any:
        """Returns the grades, as `RewardTerm` or `GroupTerm` does."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class MeasuresTerm(Protocol):
    """A live term that measures more than its grades."""

    def metrics(self) -> Mapping[str, float]:
        """Returns what it measured since the last call of this method, in this process.

        A value `name` is the metric `reward/<term>_<name>`; one without a value is left out.
        """
        ...
