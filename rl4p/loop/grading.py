"""The call of the reward phase: each process grades a share, and all receive all grades."""

from dataclasses import replace
from typing import Any

import jax

from rl4p.distributed.processes import gathered_rows, share, to_host
from rl4p.loop.phases import Phases
from rl4p.types import Rewards, Texts, Trajectories


def graded(
    phases: Phases, memory: dict[str, Any], trajectories: Trajectories, texts: Texts
) -> tuple[Rewards, dict[str, Any]]:
    """Calls the reward phase as `Phases.call` does, on each process's share of whole groups.

    With several processes the reward gets host arrays, and a reward with memory all rows.
    """
    together = trajectories.group_size
    groups = share(len(texts.responses) // together)
    if len(groups) == 1 or "reward" in memory or not all(groups):
        trajectories = trajectories if len(groups) == 1 else to_host(trajectories)
        return phases.call("reward", memory, trajectories, texts)
    rows = [range(part.start * together, part.stop * together) for part in groups]
    own = rows[jax.process_index()]
    part = slice(own.start, own.stop)
    trajectories = jax.tree.map(lambda x: x[part], to_host(trajectories))
    texts = replace(texts, prompts=texts.prompts[part], responses=tuple(texts.responses[part]))
    rewards, memory = phases.call("reward", memory, trajectories, texts)
    return gathered_rows(rewards, rows), memory
