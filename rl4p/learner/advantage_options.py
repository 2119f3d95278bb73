"""The options that every advantage takes, and the functions that apply them."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax.numpy as jnp

from rl4p.base.types import Array, Finish, Rewards, Trajectories
from rl4p.configuration.bounds import NonNegative
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
