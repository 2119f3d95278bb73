"""What the drills of checkpoints share: a small run's checkpoints, and how they are read."""

import jax
import jax.numpy as jnp

from rl4p.base.types import Prompt, TrainState
from rl4p.loop.source import PromptStream
from rl4p.runs.checkpoint import Checkpoints, Orbax


def state(step: int) -> TrainState:
    random = jax.random.key(step)
    params = {name: jax.random.normal(random, (64, 64)) for name in ("embedding", "head")}
    moments = jax.tree.map(jnp.ones_like, params)
    return TrainState(
        step=jnp.int32(step), params=params, optimizer_state=(moments,), key=random, memory={}
    )


def opened(folder) -> Checkpoints:
    names = [str(i) for i in range(16)]
    prompts = [Prompt(id=n, question=n, answer=n, task="drill", tokens=(1,)) for n in names]
    return Orbax(keep=2).open(folder, {"source": PromptStream(prompts, seed=0)})


def save(folder) -> None:
    """Saves the steps 1 and 2 of a run."""
    with opened(folder) as checkpoints:
        for step in (1, 2):
            checkpoints.save(state(step))


def restored_step(folder) -> int:
    with opened(folder) as checkpoints:
        return int(checkpoints.restore(state(0)).step)
