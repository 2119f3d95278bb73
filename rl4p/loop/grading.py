"""The call of the reward phase: each process grades a share as host arrays and gets all grades."""

from collections.abc import Sequence
from typing import Any

import jax

from rl4p.distributed.processes import gathered_rows, share, to_host
from rl4p.loop.phases import Phases
from rl4p.types import Episode, Rewards, Trajectories


def graded(
    phases: Phases,
    memory: dict[str, Any],
    trajectories: Trajectories,
    episodes: Sequence[Episode],
) -> tuple[Rewards, dict[str, Any]]:
    """Calls the reward phase on the process's share of rows; groups of known size are not divided.

    A reward with memory gets all rows in every process, because the memories must be equal.
    """
    together = trajectories.group_size
    groups = share(len(episodes) // together)
    if len(groups) == 1 or "reward" in memory or not all(groups):
        trajectories = trajectories if len(groups) == 1 else to_host(trajectories)
        return phases.call("reward", memory, trajectories, episodes)
    rows = [range(part.start * together, part.stop * together) for part in groups]
    own = rows[jax.process_index()]
    part = slice(own.start, own.stop)
    trajectories = jax.tree.map(lambda x: x[part], to_host(trajectories))
    rewards, memory = phases.call("reward", memory, trajectories, tuple(episodes[part]))
    return gathered_rows(rewards, rows), memory
