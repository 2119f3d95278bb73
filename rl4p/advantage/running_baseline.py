"""A moving average per task as the baseline."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import Positive, Share
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, spread_over_tokens

Memory = dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class RunningBaseline(AdvantageOptions):
    """A moving average of each task's rewards (2506.24119), on every response token:

        A = r - b[task]
        b[task] <- decay b[task] + (1 - decay) mean(r of the task's valid samples in this step)

    The paper starts b at 0 and updates b after every single game, before the subtraction. Here A is
    computed before the update, so that no sample is in its own baseline. In the step that first
    sees a task, the mean of the step serves as baseline and as the new b.

    Groups are ignored: equal rewards give 0 only if b has the same value (exactly so for a new
    task), and a single sample of a known task has an advantage. An invalid sample gets 0 and does
    not change b.

    Attributes:
      decay: the share of the old average that a step keeps.
      max_tasks: the length of the memory; tasks beyond it share the last entry.
    """

    decay: Share = 0.95
    max_tasks: Positive = 16

    needs = frozenset({"task_ids"})

    def initial_state(self) -> Memory:
        return {
            "baseline": jnp.zeros(self.max_tasks, jnp.float32),
            "seen": jnp.zeros(self.max_tasks, bool),
        }

    def __call__(
        self,
        trajectories: Trajectories,
        rewards: Rewards,
        *,
        scores: Mapping[str, Array],
        memory: Memory,
    ) -> tuple[Array, Memory]:
        task_B = jnp.clip(scores["task_ids"], 0, self.max_tasks - 1)
        step = group_statistics(rewards.total_B, rewards.valid_B, task_B, groups=self.max_tasks)
        old_B, seen_B = memory["baseline"][task_B], memory["seen"][task_B]
        known_B = jnp.where(rewards.valid_B, rewards.total_B - old_B, 0.0)
        advantages_B = jnp.where(seen_B, known_B, step.difference_B)
        updated_B = self.decay * old_B + (1.0 - self.decay) * step.mean_B
        # All valid samples of a task write the same value; invalid ones have no index to write.
        place_B = jnp.where(rewards.valid_B, task_B, self.max_tasks)
        return spread_over_tokens(advantages_B, trajectories), {
            "baseline": jnp.asarray(memory["baseline"])
            .at[place_B]
            .set(jnp.where(seen_B, updated_B, step.mean_B), mode="drop"),
            "seen": jnp.asarray(memory["seen"]).at[place_B].set(True, mode="drop"),
        }
