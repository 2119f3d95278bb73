"""A weighted sum of reward terms."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl4p.configuration.bounds import Share
from rl4p.errors import RunError
from rl4p.protocols import Remembers
from rl4p.types import Episode, Rewards, Trajectories


@dataclass(frozen=True, kw_only=True)
class Weighted:
    """The reward r = sum over terms of weight x grade.

    A grade that is None or not finite makes its sample invalid for all terms. Such a grade never
    counts as 0. Terms are reported unweighted.

    Attributes:
      terms: objects by name, each with a `weight` and called with the episodes (`RewardTerm`).
      max_invalid: largest share of invalid samples in a batch; above it the run stops.
    """

    terms: Mapping[str, Any]
    max_invalid: Share = 0.5

    def __post_init__(self) -> None:
        for name, term in self.terms.items():
            if isinstance(term, Remembers):
                raise ValueError(
                    f"terms.{name} has an initial_state, but a term cannot keep memory: write "
                    "your own reward for that."
                )

    @property
    def needs(self) -> frozenset[str]:
        """Returns the scores that the terms ask for; a reward cannot get any (`phases.py`)."""
        return frozenset().union(*(getattr(term, "needs", ()) for term in self.terms.values()))

    def __call__(self, trajectories: Trajectories, episodes: Sequence[Episode]) -> Rewards:
        return self.of_texts(episodes)

    def of_texts(self, episodes: Sequence[Episode]) -> Rewards:
        """Grades episodes without their arrays, which the terms do not see."""
        rows = len(episodes)
        grades = {name: grade(name, term, episodes) for name, term in self.terms.items()}
        valid_B = np.ones(rows, bool)
        for grade_B in grades.values():
            valid_B &= np.isfinite(grade_B)
        invalid = 1.0 - np.mean(valid_B)
        if invalid > self.max_invalid:
            failed = {name: int(np.sum(~np.isfinite(grade_B))) for name, grade_B in grades.items()}
            raise RunError(
                f"{invalid:.0%} of the samples could not be graded (reward.max_invalid is "
                f"{self.max_invalid:.0%}); failed grades by term, of {rows} samples: {failed}."
            )
        clean = {name: np.where(valid_B, grade_B, 0.0) for name, grade_B in grades.items()}
        total_B = sum(
            (self.terms[name].weight * grade_B for name, grade_B in clean.items()),
            np.zeros(rows),
        )
        return Rewards(
            total_B=total_B.astype(np.float32),
            terms={name: grade_B.astype(np.float32) for name, grade_B in clean.items()},
            valid_B=valid_B,
        )


def grade(name: str, term: Any, episodes: Sequence[Episode]) -> np.ndarray:
    """Returns the grades of one term as float64 [B], nan where the term gave none."""
    try:
        grades: Sequence[float | None] = term(episodes)
        grades_B = np.asarray([np.nan if g is None else float(g) for g in grades])
    except Exception as error:
        raise RunError(
            f"reward.terms.{name} raised {type(error).__name__}: {error}. Return None for a "
            "sample that cannot be graded."
        ) from error
    if len(grades_B) != len(episodes):
        raise RunError(
            f"reward.terms.{name} gave {len(grades_B)} grades for {len(episodes)} responses."
        )
    return grades_B
