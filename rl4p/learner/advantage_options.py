"""The options that every advantage takes, and the returns of turns.

A turn is what the policy says at a time: a run of response tokens without a token of others in
between. A row of a single response is one turn.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Finish, Rewards, Trajectories
from rl4p.configuration.bounds import NonNegative
from rl4p.learner.masking import loss_mask, token_rewards
from rl4p.protocols.traits import AdvantageTraits


@dataclass(frozen=True, kw_only=True)
class AdvantageOptions:
    """Options of an advantage. The caller of the advantage applies `clip` and `mask_truncated`.

    Attributes:
      clip: clips the advantages to [-clip, clip]; 0 disables clipping.
      mask_truncated: treats samples cut off by the token limit as invalid. Invalid samples count in
        neither the baseline nor the loss.
      reads_total: whether the advantage depends on the total reward (`compatibility.py`).
      compares_group: whether a sample gets 0 if its siblings have the same reward.
      one_sign: whether no two advantages have opposite signs.
      uniform: whether all advantages are the same.
    """

    reads_total: ClassVar[bool] = True
    compares_group: ClassVar[bool] = False
    one_sign: ClassVar[bool] = False
    uniform: ClassVar[bool] = False

    clip: NonNegative = 0.0
    mask_truncated: bool = False


def drop_truncated(advantage: Any, trajectories: Trajectories, rewards: Rewards) -> Rewards:
    """Marks samples cut off by the token limit as invalid, if `mask_truncated` is true.

    An advantage of the user's own may lack this option.
    """
    if not AdvantageTraits.read(advantage).mask_truncated:
        return rewards
    kept_B = rewards.valid_B & (trajectories.finish_B != int(Finish.LENGTH))
    tokens_BT = rewards.tokens_BT
    return replace(
        rewards,
        total_B=jnp.where(kept_B, rewards.total_B, 0.0),
        terms={name: jnp.where(kept_B, term_B, 0.0) for name, term_B in rewards.terms.items()},
        valid_B=kept_B,
        tokens_BT=None if tokens_BT is None else jnp.where(kept_B[:, None], tokens_BT, 0.0),
    )


def clipped(advantage: Any, advantages_BT: Array) -> Array:
    """Returns the advantages clipped to [-clip, clip], or unchanged if `clip` is 0 or missing."""
    clip = AdvantageTraits.read(advantage).clip
    return jnp.clip(advantages_BT, -clip, clip) if clip else advantages_BT


def turn_starts(mask_BT: Array) -> Array:
    """Returns the first token of each turn: bool [B, T]."""
    return mask_BT & ~jnp.pad(mask_BT[:, :-1], ((0, 0), (1, 0)))


def turn_ends(mask_BT: Array) -> Array:
    """Returns the last token of each turn: bool [B, T]."""
    return mask_BT & ~jnp.pad(mask_BT[:, 1:], ((0, 0), (0, 1)))


def from_starts(values_BT: Array, mask_BT: Array) -> Array:
    """Copies the value at the first token of each turn to all its tokens; 0 outside the mask."""
    starts_BT = turn_starts(mask_BT)
    copied_BT = recurrence(
        jnp.where(starts_BT, 0.0, 1.0), jnp.where(starts_BT, values_BT, 0.0), reverse=False
    )
    return jnp.where(mask_BT, copied_BT, 0.0)


def turn_returns(trajectories: Trajectories, rewards: Rewards, gamma: float) -> Array:
    """Returns G_k = r_k + gamma G_{k+1} on every token of turn k: float32 [B, T], 0 outside.

    r_k is the sum of the rewards of the turn's tokens (`token_rewards`).
    """
    mask_BT = loss_mask(trajectories, rewards)
    factor_BT = jnp.where(turn_ends(mask_BT), gamma, 1.0)
    returns_BT = recurrence(factor_BT, token_rewards(trajectories, rewards))
    return from_starts(returns_BT, mask_BT)


def recurrence(factor_BT: Array, addend_BT: Array, *, reverse: bool = True) -> Array:
    """Computes x_t = factor_t x_{t+1} + addend_t from the last column back, in log T steps.

    Without `reverse` it is x_t = factor_t x_{t-1} + addend_t, from the first column on.
    """

    def compose(first: tuple[Array, Array], then: tuple[Array, Array]) -> tuple[Array, Array]:
        return then[0] * first[0], then[0] * first[1] + then[1]

    return jax.lax.associative_scan(compose, (factor_BT, addend_BT), reverse=reverse, axis=1)[1]
