"""A reward for each task."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl4p.base.errors import RunError
from rl4p.base.types import Episode, Rewards, Trajectories
from rl4p.protocols.engine import HasMetrics
from rl4p.protocols.phases import Remembers
from rl4p.protocols.reward import TextReward
from rl4p.protocols.traits import PhaseTraits
from rl4p.reward.turn_rewards import with_turn_rewards


@dataclass(frozen=True, kw_only=True)
class Router:
    """A reward that grades each sample with the reward of its own task, `episode.prompt.task`.

    The terms of all tasks are called side by side, each with the samples of its task only. A term
    that only some tasks have does not apply to the samples of the others. Each reward checks its
    own `max_invalid`, as a share of the samples of its task in a batch.

    Attributes:
      tasks: for each task a reward that grades texts (`TextReward`), such as `reward=weighted`.
    """

    tasks: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError(
                "tasks is empty: add +reward@reward.tasks.TASK=weighted for each task."
            )
        for task, reward in self.tasks.items():
            if isinstance(reward, Remembers) or not isinstance(reward, TextReward):
                raise ValueError(
                    f"tasks.{task} ({type(reward).__name__}) cannot grade texts alone: choose "
                    f"+reward@reward.tasks.{task}=weighted."
                )

    @property
    def terms(self) -> Mapping[str, Any]:
        """Returns the terms of all tasks by name; tasks may have different terms of one name."""
        return {name: term for reward in self.tasks.values() for name, term in reward.terms.items()}

    @property
    def needs(self) -> frozenset[str]:
        """Returns the scores that the rewards need; a reward cannot get any (`phases.py`)."""
        return frozenset().union(*(PhaseTraits.read(each).needs for each in self.tasks.values()))

    @property
    def whole_groups(self) -> bool:
        """Returns whether a term of any task compares the samples of a group."""
        return any(reward.whole_groups for reward in self.tasks.values())

    def __call__(self, trajectories: Trajectories, episodes: Sequence[Episode]) -> Rewards:
        group_ids_B = np.asarray(trajectories.group_ids_B) if self.whole_groups else None
        rewards = self.grade_texts(episodes, group_ids_B)
        return with_turn_rewards(
            rewards, trajectories, episodes, lambda each: self.tasks[each.prompt.task].terms
        )

    def grade_texts(
        self, episodes: Sequence[Episode], group_ids_B: np.ndarray | None = None
    ) -> Rewards:
        """Grades episodes without their arrays, which the rewards do not see."""
        return self.start(episodes, group_ids_B, "reward")()

    def start(
        self, episodes: Sequence[Episode], group_ids_B: np.ndarray | None, key: str
    ) -> Callable[[], Rewards]:
        """Starts to grade all tasks, and returns a function that waits for them."""
        rows: dict[str, list[int]] = {}
        for row, episode in enumerate(episodes):
            rows.setdefault(episode.prompt.task, []).append(row)
        if unknown := sorted(rows.keys() - self.tasks.keys()):
            raise RunError(without_reward(unknown, self.tasks))
        waits = {
            task: self.tasks[task].start(
                [episodes[row] for row in own],
                None if group_ids_B is None else group_ids_B[own],
                f"{key}.tasks.{task}",
            )
            for task, own in rows.items()
        }

        def finish() -> Rewards:
            total_B = np.zeros(len(episodes), np.float32)
            valid_B, late_B = np.zeros((2, len(episodes)), bool)
            terms = {name: np.full(len(episodes), np.nan, np.float32) for name in self.terms}
            for task, wait in waits.items():
                own, rewards = rows[task], wait()
                total_B[own], valid_B[own] = rewards.total_B, rewards.valid_B
                late_B[own] = False if rewards.late_B is None else rewards.late_B
                for name, grade_B in rewards.terms.items():
                    terms[name][own] = grade_B
            terms = {
                name: np.where(valid_B, grade_B, np.float32(0)) for name, grade_B in terms.items()
            }
            return Rewards(total_B=total_B, terms=terms, valid_B=valid_B, late_B=late_B)

        return finish

    def metrics(self) -> dict[str, float]:
        """Returns what the terms measured since the last call, by task."""
        return {
            name.replace("reward/", f"reward/{task}/", 1): value
            for task, reward in self.tasks.items()
            if isinstance(reward, HasMetrics)
            for name, value in reward.metrics().items()
        }

    def close(self) -> None:
        """Closes the rewards of all tasks, also after one could not be closed."""
        with ExitStack() as stack:
            for reward in self.tasks.values():
                stack.callback(reward.close)


def without_reward(unknown: Sequence[str], tasks: Mapping[str, Any]) -> str:
    """Returns the error message for tasks of the data without a reward."""
    words = " ".join(f"+reward@reward.tasks.{task}=weighted" for task in unknown)
    return (
        f"The data has the tasks {', '.join(unknown)}, but reward.tasks has only "
        f"{', '.join(tasks)}: add {words}"
    )
