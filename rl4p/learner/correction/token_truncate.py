"""Truncated importance sampling of tokens, with w = pi_proximal / pi_behaviour."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.configuration.bounds import AboveZero


@dataclass(frozen=True, kw_only=True)
class TokenTruncate:
    """The weight min(w, cap) of each token (as in verl and TRL).

    Attributes:
      cap: upper bound of w.
    """

    weighs: ClassVar[bool] = True

    cap: AboveZero = 2.0

    def __call__(self, log_ratio_BT: Array, mask_BT: Array) -> Array:
        log_w_BT = jax.lax.stop_gradient(jnp.where(mask_BT, log_ratio_BT, 0.0))
        weights_BT = jnp.minimum(jnp.exp(jnp.clip(log_w_BT, -20.0, 20.0)), self.cap)
        return jnp.where(mask_BT, weights_BT, 0.0)
