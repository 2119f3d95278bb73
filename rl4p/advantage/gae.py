"""Generalized advantage estimation with a critic."""

from collections.abc import Mapping
from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import AboveZero, NonNegative, Share
from rl4p.learner.advantage_options import AdvantageOptions, recurrence, turn_ends
from rl4p.learner.masking import loss_mask, response_lengths, token_rewards, whiten


@dataclass(frozen=True, kw_only=True)
class GAE(AdvantageOptions):
    """GAE (1506.02438), over the response tokens t of a sequence, with V_t the value before t:

        delta_t = r_t + gamma V_{t+1} - V_t
        A_t     = delta_t + gamma lambda A_{t+1}

    t + 1 is the next response token. Tokens in between that the policy did not choose (a tool's
    answer, another turn) neither discount nor decay. After the last token, V = A = 0. r_t is
    `Rewards.tokens_BT`, and the last token receives the rest of the reward.

    `turn_gamma` and `turn_lambda` take the places of gamma and lambda between the last token of a
    turn and the first of the next one. With gamma = lambda_policy = 1 this is GAE over turns, with
    a baseline for each token (as the bi-level GAE of VAGEN, 2510.16907).

    `returns` gives the critic's targets. Advantages are whitened over the response tokens of the
    batch's valid samples, and are exactly 0 if they are all equal. Groups are ignored: equal
    rewards give 0 only where the critic predicts them. An invalid sample gets 0.

    Attributes:
      gamma: the discount.
      lambda_policy, lambda_value: the decay for the advantages, and for the critic's targets (1 in
        VAPO, 2504.05118).
      alpha: if above 0, lambda_policy is max(0, 1 - 1 / (alpha l)) for a response of l tokens, as
        in VAPO (with alpha 0.05).
      turn_gamma, turn_lambda: the discount and the decay between turns; None takes gamma and the
        lambda of advantages or targets there too.
      whiten: whether advantages are whitened.
      epsilon: added to the deviation of the advantages.
    """

    gamma: Share = 1.0
    lambda_policy: Share = 0.95
    lambda_value: Share = 1.0
    alpha: NonNegative = 0.0
    turn_gamma: Share | None = None
    turn_lambda: Share | None = None
    whiten: bool = True
    epsilon: AboveZero = 1e-4

    needs = frozenset({"values"})

    def __post_init__(self) -> None:
        if self.alpha and self.lambda_policy != GAE.lambda_policy:
            raise ValueError(
                f"lambda_policy={self.lambda_policy} conflicts with alpha={self.alpha}, which "
                "computes it from the length of each response: set only one of them."
            )

    @property
    def reads_turns(self) -> bool:
        return self.turn_gamma is not None or self.turn_lambda is not None

    def __call__(
        self, trajectories: Trajectories, rewards: Rewards, *, scores: Mapping[str, Array]
    ) -> Array:
        lambda_B = jnp.full(rewards.total_B.shape, self.lambda_policy, jnp.float32)
        if self.alpha:
            lengths_B = jnp.maximum(response_lengths(trajectories), 1)
            lambda_B = jnp.maximum(1.0 - 1.0 / (self.alpha * lengths_B), 0.0)
        advantages_BT = self._estimate(trajectories, rewards, scores["values"], lambda_B)
        if not self.whiten:
            return advantages_BT
        return whiten(advantages_BT, loss_mask(trajectories, rewards), epsilon=self.epsilon)

    def returns(
        self, trajectories: Trajectories, rewards: Rewards, scores: Mapping[str, Array]
    ) -> Array:
        """Returns the critic's targets A + V by `lambda_value`: [B, T], 0 outside the loss mask."""
        lambda_B = jnp.full(rewards.total_B.shape, self.lambda_value, jnp.float32)
        advantages_BT = self._estimate(trajectories, rewards, scores["values"], lambda_B)
        mask_BT = loss_mask(trajectories, rewards)
        return jnp.where(mask_BT, advantages_BT + scores["values"], 0.0)

    def _estimate(
        self, trajectories: Trajectories, rewards: Rewards, values_BT: Array, lambda_B: Array
    ) -> Array:
        mask_BT = loss_mask(trajectories, rewards)
        values_BT = jnp.where(mask_BT, values_BT, 0.0)
        # The value of the first response token at or after each column, then strictly after it.
        upcoming_BT = recurrence(jnp.where(mask_BT, 0.0, 1.0), values_BT)
        next_BT = jnp.pad(upcoming_BT[:, 1:], ((0, 0), (0, 1)))
        gamma, lambda_B1 = self.gamma, lambda_B[:, None]
        if self.turn_gamma is not None:
            gamma = jnp.where(turn_ends(mask_BT), self.turn_gamma, gamma)
        if self.turn_lambda is not None:
            lambda_B1 = jnp.where(turn_ends(mask_BT), self.turn_lambda, lambda_B1)
        delta_BT = token_rewards(trajectories, rewards) + gamma * next_BT - values_BT
        decay_BT = jnp.where(mask_BT, gamma * lambda_B1, 1.0)
        advantages_BT = recurrence(decay_BT, jnp.where(mask_BT, delta_BT, 0.0))
        return jnp.where(mask_BT, advantages_BT, 0.0)
