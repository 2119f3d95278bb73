"""The options that every advantage takes, and what the caller does with them around the call."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp

from rl4p.configuration.bounds import NonNegative
from rl4p.types import Array, Finish, Rewards, Trajectories


@dataclass(frozen=True, kw_only=True)
class AdvantageOptions:
    """Fields only: whoever calls the phase applies them, the phases do not.

    Attributes:
      clip: advantages are clipped to [-clip, clip] afterwards; 0 is off.
      mask_truncated: samples that the token limit cut are treated as invalid: they leave the
        baseline and the loss.
      reads_total: whether the total reward is looked at (`compatibility.py`).
      compares_group: whether a sample that equals its siblings gets 0.
      one_sign: whether no two advantages have different signs.
      uniform: whether all advantages are the same.
    """

    reads_total: ClassVar[bool] = True
    compares_group: ClassVar[bool] = False
    one_sign: ClassVar[bool] = False
    uniform: ClassVar[bool] = False

    clip: NonNegative = 0.0
    mask_truncated: bool = False


def drop_truncated(advantage: Any, trajectories: Trajectories, rewards: Rewards) -> Rewards:
    """The rewards with samples cut by the token limit made invalid, where the phase says so.

    A phase of the user's own may do without these options.
    """
    if not getattr(advantage, "mask_truncated", False):
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
    """The advantages within +-clip, where the phase has one."""
    clip = getattr(advantage, "clip", 0.0)
    return jnp.clip(advantages_BT, -clip, clip) if clip else advantages_BT
