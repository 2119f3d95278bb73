"""The call of the reward phase: each process grades a share as host arrays and gets all grades."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rl4p.distributed.processes import gathered_rows, share, to_host
from rl4p.loop.phases import Phases
from rl4p.types import Episode, Rewards, Trajectories


def graded(
    phases: Phases,
    memory: dict[str, Any],
    trajectories: Trajectories,
    episodes: Sequence[Episode],
) -> tuple[Rewards, dict[str, Any]]:
    """Calls the reward phase on the process's share of rows.

    Groups of known size are not divided, nor are those of a reward with ``whole_groups``. A reward
    with memory gets all rows in every process, because the memories must be equal. So does every
    reward if there are fewer groups than processes.
    """
    processes = len(share(len(episodes)))
    if processes == 1:
        return phases.call("reward", memory, trajectories, episodes)
    trajectories = to_host(trajectories)
    together = trajectories.group_size > 1 or getattr(phases.reward, "whole_groups", False)
    rows_B = np.arange(len(episodes))
    order_B, starts = by_group(np.asarray(trajectories.group_ids_B) if together else rows_B)
    parts = share(len(starts) - 1)
    if "reward" in memory or not all(parts):
        return phases.call("reward", memory, trajectories, episodes)
    own = parts[jax.process_index()]
    rows = order_B[starts[own.start] : starts[own.stop]]
    trajectories = jax.tree.map(lambda x: x[rows], trajectories)
    part = tuple(episodes[row] for row in rows)
    rewards, memory = phases.call("reward", memory, trajectories, part)
    gathered = gathered_rows(
        rewards, [range(starts[part.start], starts[part.stop]) for part in parts]
    )
    return jax.tree.map(lambda x: x[np.argsort(order_B)], gathered), memory


def by_group(group_ids_B: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Returns the rows ordered by group, and where each group starts in them, with the end."""
    order_B = np.argsort(group_ids_B, kind="stable")
    _, sizes = np.unique(group_ids_B, return_counts=True)
    return order_B, [0, *np.cumsum(sizes).tolist()]
