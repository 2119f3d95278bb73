"""Grading in several processes: each grades a share of the groups and receives all grades."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from rl4p.base.types import Array, Episode, Rewards, Trajectories
from rl4p.distributed.processes import gathered_rows, share, to_host
from rl4p.learner.phase_results import check_array, check_names, described, refuse
from rl4p.protocols.collection import CollectorPhases
from rl4p.protocols.traits import RewardTraits

log = logging.getLogger(__name__)

KEY = "reward"
LARGEST = float(np.finfo(np.float32).max)


def graded(
    phases: CollectorPhases,
    memory: dict[str, Any],
    trajectories: Trajectories,
    episodes: Sequence[Episode],
) -> tuple[Rewards, dict[str, Any]]:
    """Calls the reward phase on the process's share of rows.

    Groups of known size are not divided, nor are the groups of a reward with ``whole_groups``. A
    reward with memory gets all rows in every process, because the memories must be equal. So does
    every reward if there are fewer groups than processes.
    """
    processes = len(share(len(episodes)))
    if processes == 1:
        return phases.grade(memory, trajectories, episodes)
    trajectories = to_host(trajectories)
    together = trajectories.group_size > 1 or RewardTraits.read(phases.reward).whole_groups
    rows_B = np.arange(len(episodes))
    order_B, starts = by_group(np.asarray(trajectories.group_ids_B) if together else rows_B)
    parts = share(len(starts) - 1)
    if "reward" in memory or not all(parts):
        return phases.grade(memory, trajectories, episodes)
    own = parts[jax.process_index()]
    rows = order_B[starts[own.start] : starts[own.stop]]
    trajectories = jax.tree.map(lambda x: x[rows], trajectories)
    part = tuple(episodes[row] for row in rows)
    rewards, memory = phases.grade(memory, trajectories, part)
    gathered = gathered_rows(
        rewards, [range(starts[part.start], starts[part.stop]) for part in parts]
    )
    return jax.tree.map(lambda x: x[np.argsort(order_B)], gathered), memory


def by_group(group_ids_B: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Returns the rows ordered by group, and where each group starts in them, with the end."""
    order_B = np.argsort(group_ids_B, kind="stable")
    _, sizes = np.unique(group_ids_B, return_counts=True)
    return order_B, [0, *np.cumsum(sizes).tolist()]


def without_failures(rewards: Rewards, episodes: Sequence[Episode]) -> Rewards:
    """Returns the rewards; samples whose environment failed are invalid."""
    failed_B = np.array([each.failure is not None for each in episodes], bool)
    if not failed_B.any():
        return rewards
    first = episodes[int(np.argmax(failed_B))]
    log.warning(
        "%d of %d episodes failed, such as one of the prompt %s: %s. These samples are invalid.",
        np.sum(failed_B),
        len(episodes),
        first.prompt.id,
        first.failure,
    )
    return masked(rewards, ~failed_B)


def masked(rewards: Rewards, valid_B: np.ndarray) -> Rewards:
    """Returns the rewards with 0 for the samples that are invalid now."""
    valid_B = np.asarray(to_host(rewards.valid_B)) & valid_B

    def kept(values: Array) -> np.ndarray:
        rows = valid_B if np.ndim(values) == 1 else valid_B[:, None]
        return np.where(rows, np.asarray(to_host(values)), 0.0).astype(np.float32)

    return replace(
        rewards,
        total_B=kept(rewards.total_B),
        terms={name: kept(grade_B) for name, grade_B in rewards.terms.items()},
        valid_B=valid_B,
        tokens_BT=None if rewards.tokens_BT is None else kept(rewards.tokens_BT),
    )


def checked_rewards(phase: Any, rewards: Any, rows: int) -> Rewards:
    """Returns rewards whose valid samples have finite float32 rewards; others become invalid.

    Raises:
      RunError: these are no `Rewards`, or one of the arrays has a wrong type or shape.
    """
    if not isinstance(rewards, Rewards):
        refuse(KEY, phase, "rl4p.base.types.Rewards", f"not {described(rewards)}")
    terms = check_names(KEY, phase, "terms", rewards.terms)
    late = {} if rewards.late_B is None else {"late_B": rewards.late_B}
    for kind, arrays in (
        ("f", {"total_B": rewards.total_B} | terms),
        ("b", {"valid_B": rewards.valid_B} | late),
    ):
        for name, values in arrays.items():
            check_array(KEY, phase, name, values, (rows,), kind)
    total_B, valid_B, terms = to_host((rewards.total_B, rewards.valid_B, terms))
    wrong_B = ~(np.abs(total_B) <= LARGEST)
    for grade_B in terms.values():
        wrong_B = wrong_B | (np.abs(grade_B) > LARGEST)  # nan where the term does not apply
    if not np.any(wrong_B & valid_B):
        return rewards
    log.warning(
        "reward (%s) gave %d of %d samples a number that is not finite as float32, such as %s. "
        "These samples are invalid.",
        type(phase).__name__,
        np.sum(wrong_B & valid_B),
        rows,
        total_B[np.argmax(wrong_B & valid_B)],
    )
    return masked(rewards, ~wrong_B)
