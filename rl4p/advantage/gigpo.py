"""Group-relative advantages of episodes and of their turns."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import AboveZero, Natural, NonNegative, Share
from rl4p.learner.advantage_options import AdvantageOptions, from_starts, turn_returns, turn_starts
from rl4p.learner.masking import group_statistics, loss_mask, spread_over_tokens


@dataclass(frozen=True, kw_only=True)
class GiGPO(AdvantageOptions):
    """Group-in-Group Policy Optimization (2505.10978), on every token of turn k:

        A_k = F(r) + weight F(G_k),   F(x) = (x - mean) / (std + epsilon)
        G_k = r_k + gamma G_{k+1}

    F(r) compares the rewards of the group's samples, as GRPO. F(G_k) compares the returns of all
    turns of the group that begin in the same state (`turn_states`), at any k and in any sample. It
    is exactly 0 where no other turn begins in that state, and where the returns are equal. The
    state of the first turn is what the policy reads before it; of a later one,
    `StepResult.state` of the turn before. Invalid samples get 0 and are not compared.

    Unlike the paper, F(G_k) is 0 in a group whose samples all have one turn, where it would repeat
    F(r): such a group gets exactly what GRPO gives it.

    Attributes:
      weight: the weight of the comparison of turns.
      gamma: the discount per turn.
      epsilon: added to the deviations.
      ddof: the deviations divide by count - ddof.
    """

    needs = frozenset({"turn_states"})
    compares_group = True
    reads_turns = True

    weight: NonNegative = 1.0
    gamma: Share = 0.95
    epsilon: AboveZero = 1e-4
    ddof: Natural = 1

    def __call__(
        self, trajectories: Trajectories, rewards: Rewards, *, scores: Mapping[str, Array]
    ) -> Array:
        ids_B, mask_BT = trajectories.group_ids_B, loss_mask(trajectories, rewards)
        group = group_statistics(rewards.total_B, rewards.valid_B, ids_B, ddof=self.ddof)
        of_episode_BT = spread_over_tokens(
            group.difference_B / (group.std_B + self.epsilon), trajectories
        )
        starts_BT = turn_starts(mask_BT)
        turns_B = jnp.sum(starts_BT, axis=1)
        most_B = jax.ops.segment_max(turns_B, ids_B, num_segments=len(ids_B))[ids_B]
        returns_BT = turn_returns(trajectories, rewards, self.gamma)
        turn = group_statistics(  # B and T are flat here: each first token of a turn is a sample
            returns_BT.reshape(-1),
            (starts_BT & (most_B > 1)[:, None]).reshape(-1),
            jnp.where(starts_BT, scores["turn_states"], 0).reshape(-1),
            ddof=self.ddof,
        )
        of_turn_BT = (turn.difference_B / (turn.std_B + self.epsilon)).reshape(mask_BT.shape)
        return of_episode_BT + self.weight * from_starts(of_turn_BT, mask_BT)
