"""Importance weights for tokens that another policy sampled: `protocols.Correction`."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.configuration.bounds import AboveZero, NonNegative


@dataclass(frozen=True, kw_only=True)
class NONE:
    """A weight of 1 on every token of the mask."""

    active: ClassVar[bool] = False

    def __call__(self, log_ratio_BT: Array, mask_BT: Array) -> Array:
        return jnp.where(mask_BT, jnp.ones_like(log_ratio_BT), 0.0)


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


@dataclass(frozen=True, kw_only=True)
class SequenceMask:
    """Weights of 0 on sequences whose geometric mean of w over their tokens is outside [low, high].

    Attributes:
      low, high: the bounds. A geometric mean changes far less than the w of a single token.
      weighted: whether the tokens of accepted sequences weigh w; if false they weigh 1.
    """

    low: NonNegative = 0.99
    high: AboveZero = 1.01
    weighted: bool = False

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(
                f"low={self.low} is above high={self.high}, so every sequence would be left out: "
                "set a low below high."
            )

    @property
    def weighs(self) -> bool:
        """Whether the weights contain w, and not only 0 and 1."""
        return self.weighted

    def __call__(self, log_ratio_BT: Array, mask_BT: Array) -> Array:
        log_w_BT = jax.lax.stop_gradient(jnp.where(mask_BT, log_ratio_BT, 0.0))
        tokens_B1 = jnp.sum(mask_BT, axis=1, keepdims=True, dtype=log_w_BT.dtype)
        mean_B1 = jnp.sum(log_w_BT, axis=1, keepdims=True) / jnp.maximum(tokens_B1, 1)
        geometric_B1 = jnp.exp(jnp.clip(mean_B1, -20.0, 20.0))
        inside_B1 = (geometric_B1 >= self.low) & (geometric_B1 <= self.high)
        own_BT = jnp.exp(jnp.clip(log_w_BT, -20.0, 20.0))
        weights_BT = own_BT if self.weighted else jnp.ones_like(own_BT)
        return jnp.where(mask_BT & inside_B1, weights_BT, 0.0)
