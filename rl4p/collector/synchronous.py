"""Rollout, then reward, one after the other, with the newest parameters."""

from dataclasses import dataclass

import jax

from rl4p.data.stream import PromptStream
from rl4p.grading import graded
from rl4p.model.policy import Policy
from rl4p.phases import Phases
from rl4p.protocols import Collected
from rl4p.stopwatch import Stopwatch
from rl4p.types import TrainState


@dataclass(frozen=True, kw_only=True)
class Synchronous:
    """Takes a step's prompts, draws a group of responses to each, grades them all."""

    def __call__(
        self,
        phases: Phases,
        policy: Policy,
        state: TrainState,
        stream: PromptStream,
        watch: Stopwatch,
        *,
        prompts_per_step: int,
        group_size: int,
    ) -> Collected:
        step = int(state.step)
        prompts = stream.take(prompts_per_step)
        with watch("rollout"):
            (trajectories, texts), memory = phases.call(
                "rollout",
                state.memory,
                policy,
                state.params,
                prompts,
                group_size=group_size,
                key=jax.random.fold_in(state.step_key(), 0),
                version=step,
            )
        with watch("reward"):
            rewards, memory = graded(phases, memory, trajectories, texts)
            rewards = policy.mesh.shard_rows(rewards)
        return Collected(trajectories=trajectories, texts=texts, rewards=rewards, memory=memory)
