"""The turns of trajectories: what the policy says at a time, and the rewards of it.

A turn is a run of response tokens without a token of others in between. A row of a single response
is one turn.
"""

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.learner.masking import loss_mask, token_rewards


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
