"""The choice of the experts of each token, and their weights."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from rl4p.base.types import Array


@dataclass(frozen=True, kw_only=True)
class Router:
    """The options of the choice of C experts out of E, from one score x R per expert.

        p = softmax(x R) or sigmoid(x R);   chosen: the C largest p + b;   weights: factor x p

    With groups, the experts are divided into equal groups, and a token chooses only among the
    experts of its best groups (2405.04434, 2412.19437). `DecoderConfig.normalized_experts` divides
    p of the chosen experts by its sum first. (A softmax over the chosen scores alone, as in
    GPT-OSS, is a softmax over all, normalized.)

    Attributes:
      score: the function of x R.
      corrected: each expert has a b, for the choice only (2408.15664). It is a constant in training
        (`partition.Parameter.frozen`).
      groups, chosen_groups: the number of groups, and of those that a token chooses.
      group_score: what a group is chosen by: its largest p + b, or the sum of its two largest.
      factor: the factor of the weights.
      epsilon: what is added to the sum that normalizes.
      scaled: each expert has a factor of its weights.
      exact: x R is a product of float32, in any dtype of activations.
    """

    score: Literal["softmax", "sigmoid"] = "softmax"
    corrected: bool = False
    groups: int = 1
    chosen_groups: int = 1
    group_score: Literal["largest", "two_largest"] = "two_largest"
    factor: float = 1.0
    epsilon: float = 0.0
    scaled: bool = False
    exact: bool = False

    def check(self, experts: int, chosen: int) -> None:
        """Raises ValueError if tokens cannot choose so many of these experts."""
        size = experts // self.groups
        least = 2 if self.groups > 1 and self.group_score == "two_largest" else 1
        if experts % self.groups or size < least or not 0 < self.chosen_groups <= self.groups:
            raise ValueError(
                f"{self.groups} groups of {experts} experts, of which {self.chosen_groups} are "
                f"chosen, must be equal and have at least {least} experts each."
            )
        if chosen > self.chosen_groups * size:
            raise ValueError(
                f"{self.chosen_groups} groups of {size} experts have fewer than the {chosen} "
                "experts that a token chooses."
            )

    def choose(
        self, scores_BTE: Array, correction_E: Array | None, chosen: int, *, normalized: bool
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the weights, float32, and the numbers of the chosen experts: [B, T, C].

        Args:
          scores_BTE: x R in float32.
          correction_E: b; None if there is none.
          chosen, normalized: C, and whether the weights are normalized.
        """
        p_BTE = (jax.nn.softmax if self.score == "softmax" else jax.nn.sigmoid)(scores_BTE)
        if correction_E is None and self.groups == 1:
            weights_BTC, chosen_BTC = jax.lax.top_k(p_BTE, chosen)
        else:
            rank_BTE = p_BTE
            if correction_E is not None:
                rank_BTE = rank_BTE + jnp.broadcast_to(correction_E, rank_BTE.shape)
            rank_BTE = self.within_groups(jax.lax.stop_gradient(rank_BTE))
            chosen_BTC = jax.lax.top_k(rank_BTE, chosen)[1]
            weights_BTC = jnp.take_along_axis(p_BTE, chosen_BTC, axis=-1)
        if normalized:
            sum_BT1 = jnp.sum(weights_BTC, axis=-1, keepdims=True)
            weights_BTC = weights_BTC / (sum_BT1 + self.epsilon if self.epsilon else sum_BT1)
        return (weights_BTC if self.factor == 1 else weights_BTC * self.factor), chosen_BTC

    def within_groups(self, rank_BTE: Array) -> Array:
        """Returns the ranks with -inf outside the best groups of each token."""
        if self.groups == 1:
            return rank_BTE
        rank_BTGe = rank_BTE.reshape(*rank_BTE.shape[:-1], self.groups, -1)
        best = jax.lax.top_k(rank_BTGe, 1 if self.group_score == "largest" else 2)[0]
        chosen_BTN = jax.lax.top_k(jnp.sum(best, axis=-1), self.chosen_groups)[1]
        in_BTG = jnp.any(jax.nn.one_hot(chosen_BTN, self.groups, dtype=bool), axis=-2)
        return jnp.where(in_BTG[..., None], rank_BTGe, -jnp.inf).reshape(rank_BTE.shape)


PLAIN = Router()
