"""Truncated importance sampling of whole sequences, with w_t = pi_proximal / pi_behaviour."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.configuration.bounds import AboveZero


@dataclass(frozen=True, kw_only=True)
class SequenceTruncate:
    """The weight min(prod_t w_t, cap) on each token of a sequence (as in verl and TRL).

    Attributes:
      cap: upper bound of the product.
    """

    weighs: ClassVar[bool] = True

    cap: AboveZero = 2.0

    def __call__(self, log_ratio_BT: Array, mask_BT: Array) -> Array:
        log_w_BT = jax.lax.stop_gradient(jnp.where(mask_BT, log_ratio_BT, 0.0))
        log_w_B1 = jnp.clip(jnp.sum(log_w_BT, axis=1, keepdims=True), -20.0, 20.0)
        return jnp.where(mask_BT, jnp.minimum(jnp.exp(log_w_B1), self.cap), 0.0)
