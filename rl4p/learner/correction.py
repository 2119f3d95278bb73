"""Importance weights for tokens that another policy sampled: `protocols.Correction`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import AboveZero, NonNegative
from rl4p.learner.phase_results import check_array
from rl4p.protocols.phases import Correction
from rl4p.protocols.traits import CorrectionTraits


def correction_weights(
    correction: Correction, log_ratio_BT: Array, logprobs_BT: Array, batch: TrainingBatch
) -> Array:
    """Calls a correction with what its traits request, and checks the weights that it returns.

    Args:
      log_ratio_BT: log pi_proximal - log pi_behaviour, 0 on tokens that no policy drew.
      logprobs_BT: log pi of the current policy, without a gradient; 0 outside the loss mask.
    """
    traits, more = CorrectionTraits.read(correction), {}
    if traits.reads_batch:
        more = {"logprobs_BT": logprobs_BT, "batch": batch}
    elif traits.needs:
        more = {"scores": {name: batch.scores[name] for name in traits.needs}}
    weights_BT = correction(log_ratio_BT, batch.loss_mask_BT, **more)
    check_array("correction", correction, "the weights", weights_BT, log_ratio_BT.shape)
    return weights_BT


def by_token(correction: Correction) -> tuple[list[Correction], list[Correction]]:
    """Returns the parts of a correction that weigh a token by its own ratio, and the others."""
    parts = list(correction.parts.values()) if isinstance(correction, Product) else [correction]
    own = [part for part in parts if CorrectionTraits.read(part).by_token]
    return own, [part for part in parts if part not in own]


@dataclass(frozen=True, kw_only=True)
class NONE:
    """A weight of 1 on every token of the mask."""

    active: ClassVar[bool] = False
    by_token: ClassVar[bool] = True

    def __call__(self, log_ratio_BT: Array, mask_BT: Array) -> Array:
        return jnp.where(mask_BT, jnp.ones_like(log_ratio_BT), 0.0)


@dataclass(frozen=True, kw_only=True)
class TokenTruncate:
    """The weight min(w, cap) of each token (as in verl and TRL).

    Attributes:
      cap: upper bound of w.
    """

    weighs: ClassVar[bool] = True
    by_token: ClassVar[bool] = True

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
      weighted: whether accepted tokens weigh w; if false they weigh 1.
    """

    by_token: ClassVar[bool] = True

    low: NonNegative = 0.5
    high: AboveZero = 5.0
    weighted: bool = True

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(
                f"low={self.low} is above high={self.high}, so every token would get weight 0: "
                "set a low below high."
            )

    @property
    def weighs(self) -> bool:
        """Whether the weights contain w, and not only 0 and 1."""
        return self.weighted

    def __call__(self, log_ratio_BT: Array, mask_BT: Array) -> Array:
        log_w_BT = jax.lax.stop_gradient(jnp.where(mask_BT, log_ratio_BT, 0.0))
        own_BT = jnp.exp(jnp.clip(log_w_BT, -20.0, 20.0))
        inside = (own_BT >= self.low) & (own_BT <= self.high)
        weights_BT = own_BT if self.weighted else jnp.ones_like(own_BT)
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
      weighted: whether the tokens of accepted sequences weigh w, which nothing truncates (NeMo RL's
        seq-mask-tis); if false they weigh 1.
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


@dataclass(frozen=True, kw_only=True)
class OffPolicyMask:
    """Weights of 0 on bad tokens of sequences that the policy has left (DeepSeek-V3.2, 2512.02556):

        0 where A < 0 and mean_t log(pi_behaviour / pi) > threshold, and 1 on other tokens

    The mean over the tokens of a sequence estimates KL(pi_behaviour || pi). pi is the policy of the
    optimizer update, so a sequence may be dropped from a later update of a step only. A token that
    no policy drew has no log-ratio and is left out of the mean (TRL counts it as 0).

    Attributes:
      threshold: the largest mean in nats. The paper has no number.
    """

    reads_batch: ClassVar[bool] = True
    reads_advantages: ClassVar[bool] = True

    threshold: NonNegative = 0.02

    def __call__(
        self, log_ratio_BT: Array, mask_BT: Array, *, logprobs_BT: Array, batch: TrainingBatch
    ) -> Array:
        drawn_BT = mask_BT & (batch.trajectories.policy_version_BT >= 0)
        left_BT = jnp.where(drawn_BT, batch.trajectories.behaviour_logprobs_BT - logprobs_BT, 0.0)
        tokens_B1 = jnp.sum(drawn_BT, axis=1, keepdims=True, dtype=left_BT.dtype)
        mean_B1 = jnp.sum(left_BT, axis=1, keepdims=True) / jnp.maximum(tokens_B1, 1)
        dropped_BT = (batch.advantages_BT < 0) & (mean_B1 > self.threshold)
        return jnp.where(mask_BT & ~dropped_BT, jnp.ones_like(left_BT), 0.0)


@dataclass(frozen=True, kw_only=True)
class Product:
    """The product of the weights of several corrections, each of which sees all tokens.

    A token has a weight only if every mask accepts it. At most one of the corrections weighs: with
    two, w would be in the product twice.

    Attributes:
      parts: corrections by name.
    """

    reads_batch: ClassVar[bool] = True

    # Equal products are equal in their parts; a dictionary has no hash.
    parts: Mapping[str, Correction] = field(hash=False)

    def __post_init__(self) -> None:
        if len(self.parts) < 2:
            raise ValueError(
                "product needs at least two corrections: +correction@correction.parts.NAME=OPTION "
                "for each."
            )
        traits = self.traits
        if idle := [name for name, of_part in traits.items() if not of_part.active]:
            raise ValueError(f"parts.{idle[0]} gives every token the weight 1: leave it out.")
        weighing = [name for name, of_part in traits.items() if of_part.weighs]
        if len(weighing) > 1:
            raise ValueError(
                f"parts.{weighing[0]} and parts.{weighing[1]} both weigh with w, which would be in "
                "the product twice: leave one out, or set weighted=false of a mask."
            )

    @property
    def traits(self) -> dict[str, CorrectionTraits]:
        """Returns the traits of the parts by name."""
        return {name: CorrectionTraits.read(part) for name, part in self.parts.items()}

    @property
    def weighs(self) -> bool:
        """Whether the weights contain w, and not only 0 and 1."""
        return any(of_part.weighs for of_part in self.traits.values())

    @property
    def reads_advantages(self) -> bool:
        """Whether one of the parts acts by the advantage."""
        return any(of_part.reads_advantages for of_part in self.traits.values())

    @property
    def needs(self) -> frozenset[str]:
        """Returns the scores that the parts request."""
        return frozenset().union(*(of_part.needs for of_part in self.traits.values()))

    def __call__(
        self, log_ratio_BT: Array, mask_BT: Array, *, logprobs_BT: Array, batch: TrainingBatch
    ) -> Array:
        weights_BT = jnp.where(mask_BT, jnp.ones_like(log_ratio_BT), 0.0)
        for part in self.parts.values():
            weights_BT *= correction_weights(part, log_ratio_BT, logprobs_BT, batch)
        return weights_BT
