"""A moving average per task and role as the baseline."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import Positive, Share
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import group_statistics, loss_mask

Memory = dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class RunningBaseline(AdvantageOptions):
    """Role-conditioned advantage estimation (2506.24119), on every token of a role's turns:

        A = R - b[task, role]
        b[task, role] <- decay b[task, role] + (1 - decay) mean(R)

    R is the reward of the role in an episode: the rewards of its turns, and those that belong to no
    turn, which all roles get. The mean is over the step's valid samples of the task in which the
    role has spoken. With `max_roles=1` R is the total reward, and all response tokens have it.

    The paper starts b at 0 and updates b after every single game, before the subtraction. Here A is
    computed before the update, so that no sample is in its own baseline. In the step that first
    sees a task or a role, the mean of the step serves as baseline and as the new b.

    Groups are ignored: equal rewards give 0 only if b has the same value (exactly so for a new
    task), and a single sample of a known task has an advantage. An invalid sample gets 0 and does
    not change b.

    Attributes:
      decay: the share of the old average that a step keeps.
      max_tasks: the length of the memory; tasks beyond it share the last entry.
      max_roles: the averages of each task; roles beyond it share the last one.
    """

    decay: Share = 0.95
    max_tasks: Positive = 16
    max_roles: Positive = 1

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"task_ids", "turn_roles"} if self.max_roles > 1 else {"task_ids"})

    def initial_state(self) -> Memory:
        places = self.max_tasks * self.max_roles
        return {"baseline": jnp.zeros(places, jnp.float32), "seen": jnp.zeros(places, bool)}

    def __call__(
        self,
        trajectories: Trajectories,
        rewards: Rewards,
        *,
        scores: Mapping[str, Array],
        memory: Memory,
    ) -> tuple[Array, Memory]:
        R, mask_BT = self.max_roles, loss_mask(trajectories, rewards)
        role_BT = jnp.zeros(mask_BT.shape, jnp.int32)
        reward_BR, valid_BR = rewards.total_B[:, None], rewards.valid_B[:, None]
        if R > 1:
            role_BT = jnp.clip(scores["turn_roles"], 0, R - 1)
            own_BTR = mask_BT[..., None] & (role_BT[..., None] == jnp.arange(R)[None, None])
            tokens_BT = jnp.zeros(mask_BT.shape) if rewards.tokens_BT is None else rewards.tokens_BT
            own_BR = jnp.sum(jnp.where(own_BTR, tokens_BT[..., None], 0.0), axis=1)
            reward_BR = own_BR + (reward_BR - jnp.sum(own_BR, axis=1, keepdims=True))
            valid_BR = jnp.any(own_BTR, axis=1)

        # A sample of the statistics is a role of an episode: B and R are flat.
        task_B = jnp.clip(scores["task_ids"], 0, self.max_tasks - 1)
        place = (task_B[:, None] * R + jnp.arange(R)[None]).reshape(-1)
        reward, valid = reward_BR.reshape(-1), valid_BR.reshape(-1)
        step = group_statistics(reward, valid, place, groups=self.max_tasks * R)
        old, seen = memory["baseline"][place], memory["seen"][place]
        known = jnp.where(valid, reward - old, 0.0)
        advantages_BR = jnp.where(seen, known, step.difference_B).reshape(reward_BR.shape)
        updated = self.decay * old + (1.0 - self.decay) * step.mean_B
        # All valid samples of a place write the same value; invalid ones have no index to write.
        place = jnp.where(valid, place, self.max_tasks * R)
        advantages_BT = jnp.take_along_axis(advantages_BR, role_BT, axis=1)
        return jnp.where(mask_BT, advantages_BT, 0.0), {
            "baseline": jnp.asarray(memory["baseline"])
            .at[place]
            .set(jnp.where(seen, updated, step.mean_B), mode="drop"),
            "seen": jnp.asarray(memory["seen"]).at[place].set(True, mode="drop"),
        }
