"""Masked importance sampling of tokens, with w = pi_proximal / pi_behaviour."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.configuration.bounds import AboveZero, NonNegative


@dataclass(frozen=True, kw_only=True)
class TokenMask:
    """The weight w on tokens with low <= w <= high, and 0 on other tokens (IcePop, 2510.18855).

    Attributes:
      low, high: bounds of w; the defaults are from IcePop.
    """

    weighs: ClassVar[bool] = True

    low: NonNegative = 0.5
    high: AboveZero = 5.0

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(
                f"low={self.low} is above high={self.high}, so every token would get weight 0: "
                "set a low below high."
            )

    def __call__(self, log_ratio_BT: Array, mask_BT: Array) -> Array:
        log_w_BT = jax.lax.stop_gradient(jnp.where(mask_BT, log_ratio_BT, 0.0))
        weights_BT = jnp.exp(jnp.clip(log_w_BT, -20.0, 20.0))
        inside = (weights_BT >= self.low) & (weights_BT <= self.high)
        return jnp.where(mask_BT & inside, weights_BT, 0.0)
