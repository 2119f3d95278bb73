"""A weighted sum of reward terms."""

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rl4p.base.errors import RunError
from rl4p.base.types import Episode, Rewards, Trajectories
from rl4p.configuration.bounds import AboveZero, Share
from rl4p.protocols.phases import Remembers
from rl4p.protocols.reward import TimedTerm
from rl4p.protocols.traits import TermTraits
from rl4p.reward.live_terms import LARGEST, LiveTerm, TermGrades, group_ids_of, rows_of_groups
from rl4p.reward.turn_rewards import with_turn_rewards

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """The reward r = sum over terms of weight x grade, over the terms that apply to the sample.

    A grade of None means that the term does not apply to the sample. A grade that is not finite, a
    call that raises, and a call that passes its deadline make their samples invalid for all terms.
    So does a sample to which no term applies. None of them counts as 0. Terms are reported
    unweighted.

    The terms of a batch are called side by side, each in a thread of its own (`RewardTerm`).

    Attributes:
      terms: objects by name, each with a `weight` (`RewardTerm`, `GroupTerm`).
      max_invalid: largest share of invalid samples in a batch; above it the run stops.
      deadline: seconds that a term may take for a batch, unless the term has its own `deadline`;
        None for no limit.
    """

    terms: Mapping[str, Any]
    max_invalid: Share = 0.5
    deadline: AboveZero | None = 60.0

    def __post_init__(self) -> None:
        for name, term in self.terms.items():
            if name in ("mean", "std", "invalid", "late"):
                raise ValueError(
                    f"terms.{name}: the metric reward/{name} describes the whole reward: "
                    "choose another name."
                )
            if isinstance(term, Remembers):
                raise ValueError(
                    f"terms.{name} has an initial_state, but a term cannot keep memory: write "
                    "your own reward for that."
                )
            weight = TermTraits.read(term).weight
            if not hasattr(term, "weight"):
                raise ValueError(
                    f"terms.{name} has no weight: add the field `weight: float = 1.0` to the class "
                    f"{type(term).__name__}."
                )
            if weight is None or not (is_number(weight) and np.isfinite(weight)):
                raise ValueError(f"terms.{name}.weight={weight} must be a finite number.")
            deadline = term.deadline if isinstance(term, TimedTerm) else None
            if deadline is not None and not (is_number(deadline) and 0 < deadline < np.inf):
                raise ValueError(
                    f"terms.{name}.deadline={deadline} must be a number of seconds above 0, or "
                    "null for no limit."
                )

    @property
    def needs(self) -> frozenset[str]:
        """Returns the scores that the terms need; a reward cannot get any (`phases.py`)."""
        return frozenset().union(*(TermTraits.read(term).needs for term in self.terms.values()))

    @property
    def whole_groups(self) -> bool:
        """Returns whether a term compares the samples of a group."""
        return any(TermTraits.read(term).whole_groups for term in self.terms.values())

    @cached_property
    def live(self) -> Mapping[str, LiveTerm]:
        return {name: LiveTerm(term, self.deadline) for name, term in self.terms.items()}

    def __call__(self, trajectories: Trajectories, episodes: Sequence[Episode]) -> Rewards:
        group_ids_B = np.asarray(trajectories.group_ids_B) if self.whole_groups else None
        rewards = self.grade_texts(episodes, group_ids_B)
        return with_turn_rewards(rewards, trajectories, episodes, lambda _: self.terms)

    def grade_texts(
        self, episodes: Sequence[Episode], group_ids_B: np.ndarray | None = None
    ) -> Rewards:
        """Grades episodes without their arrays, which the terms do not see."""
        return self.start(episodes, group_ids_B, "reward")()

    def start(
        self, episodes: Sequence[Episode], group_ids_B: np.ndarray | None, key: str
    ) -> Callable[[], Rewards]:
        """Starts the terms that have a deadline, in threads.

        Returns a function that runs the other terms, waits for those, and returns the rewards.

        Args:
          group_ids_B: the group of each row; None reads it from the episodes.
          key: the key of this reward in the configuration, for messages.
        """
        groups = []
        if self.whole_groups:
            groups = rows_of_groups(group_ids_of(episodes) if group_ids_B is None else group_ids_B)
        waits = {
            name: live.start(f"{key}.terms.{name}", episodes, groups)
            for name, live in self.live.items()
        }
        without = [name for name in waits if self.live[name].deadline is None]

        def finish() -> Rewards:
            # First those without a deadline, which run here, while the others run in their threads.
            grades = {name: waits[name]() for name in sorted(waits, key=lambda x: x not in without)}
            return self.total({name: grades[name] for name in self.terms}, len(episodes), key)

        return finish

    def total(self, grades: Mapping[str, TermGrades], rows: int, key: str) -> Rewards:
        """Returns the weighted sum."""
        failed_B, late_B, applies_B = np.zeros((3, rows), bool)
        for each in grades.values():
            failed_B |= each.failed_B
            late_B |= each.failed_B & each.late
            applies_B |= ~np.isnan(each.grades_B)
        with np.errstate(over="ignore", invalid="ignore"):
            total_B = sum(
                (self.terms[name].weight * np.nan_to_num(x.grades_B) for name, x in grades.items()),
                np.zeros(rows),
            )
        # Not `> LARGEST`: inf - inf is nan, and a comparison with nan is false.
        beyond_B = ~failed_B & ~(np.abs(total_B) <= LARGEST)
        failed_B |= beyond_B
        problems = [each.problem for each in grades.values() if each.problem]
        if np.any(beyond_B):
            problems.append(f"{key}: the weighted sum of {np.sum(beyond_B)} is beyond float32.")
            log.warning("%s These samples are invalid.", problems[-1])
        valid_B = ~failed_B & (applies_B if grades else True)
        if (invalid := 1.0 - np.mean(valid_B)) > self.max_invalid:
            failed = {name: int(np.sum(each.failed_B)) for name, each in grades.items()}
            without = int(np.sum(~failed_B & ~valid_B))
            errors = [each.error for each in grades.values() if each.error]
            raise RunError(
                f"{invalid:.0%} of the samples could not be graded ({key}.max_invalid is "
                f"{self.max_invalid:.0%}); failed grades by term, of {rows} samples: {failed}."
                + f" No term applies to {without} samples." * bool(without)
                + "".join(f" {problem}" for problem in problems)
            ) from next(iter(errors), None)
        terms = {name: np.where(valid_B, each.grades_B, 0.0) for name, each in grades.items()}
        return Rewards(
            total_B=np.where(valid_B, total_B, 0.0).astype(np.float32),
            terms={name: grade_B.astype(np.float32) for name, grade_B in terms.items()},
            valid_B=valid_B,
            late_B=late_B,
        )

    def metrics(self) -> dict[str, float]:
        """Returns what the terms measured since the last call, beside their grades."""
        return {
            f"reward/{name}_{key}": value
            for name, live in self.live.items()
            for key, value in live.metrics().items()
        }

    def close(self) -> None:
        """Closes the terms; the next grading opens them again."""
        with ExitStack() as stack:  # also after one could not be closed
            for term in self.live.values():
                stack.callback(term.close)


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
