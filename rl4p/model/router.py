"""The choice of the experts of each token, and their weights."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

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
      corrected: each expert has a b, for the choice only (2408.15664). It has no gradient, and is a
        constant in training (`partition.Parameter.frozen`) but for `balanced`.
      groups, chosen_groups: the number of groups, and of those that a token chooses.
      group_score: what a group is chosen by: its largest p + b, or the sum of its two largest.
      factor: the factor of the weights.
      epsilon: what is added to the sum that normalizes.
      scaled: each expert has a factor of its weights.
      of_inputs: the weights multiply the inputs of experts, not their results.
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
    of_inputs: bool = False
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
        self,
        scores_BTE: Array,
        correction_E: Array | None,
        chosen: int,
        *,
        normalized: bool,
        replayed_BTC: Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the weights, float32, and the numbers of the chosen experts: [B, T, C].

        Args:
          scores_BTE: x R in float32.
          correction_E: b; None if there is none.
          chosen, normalized: C, and whether the weights are normalized.
          replayed_BTC: 1 + the numbers of experts that replace the choice of a token, or 0 where
            they do not (rollout routing replay, 2510.11370). The weights follow the scores here.
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
        if replayed_BTC is not None:
            replayed_BTC = replayed_BTC.astype(jnp.int32)
            chosen_BTC = jnp.where(replayed_BTC > 0, replayed_BTC - 1, chosen_BTC)
            weights_BTC = jnp.take_along_axis(p_BTE, chosen_BTC, axis=-1)
        if normalized:
            sum_BT1 = jnp.sum(weights_BTC, axis=-1, keepdims=True)
            weights_BTC = weights_BTC / (sum_BT1 + self.epsilon if self.epsilon else sum_BT1)
        return (weights_BTC if self.factor == 1 else weights_BTC * self.factor), chosen_BTC

    def shares(self, scores_BTE: Array) -> jax.Array:
        """Returns p of all experts, divided by its sum."""
        if self.score == "softmax":
            return jax.nn.softmax(scores_BTE)
        p_BTE = jax.nn.sigmoid(scores_BTE)
        return p_BTE / jnp.sum(p_BTE, axis=-1, keepdims=True)

    def within_groups(self, rank_BTE: Array) -> Array:
        """Returns the ranks with -inf outside the best groups of each token."""
        if self.groups == 1:
            return rank_BTE
        rank_BTGe = rank_BTE.reshape(*rank_BTE.shape[:-1], self.groups, -1)
        best = jax.lax.top_k(rank_BTGe, 1 if self.group_score == "largest" else 2)[0]
        chosen_BTN = jax.lax.top_k(jnp.sum(best, axis=-1), self.chosen_groups)[1]
        in_BTG = jnp.any(jax.nn.one_hot(chosen_BTN, self.groups, dtype=bool), axis=-2)
        return jnp.where(in_BTG[..., None], rank_BTGe, -jnp.inf).reshape(rank_BTE.shape)


class RouterLoad(NamedTuple):
    """The sums over tokens, without padding, of what the routers of M layers do.

    Attributes:
      chosen_ME: float32, how many tokens chose each of E experts; a constant in training.
      shares_ME: float32, the sum of `Router.shares`.
    """

    chosen_ME: Array
    shares_ME: Array

    @classmethod
    def of(cls, chosen: Array, shares: Array, real_BT: Array) -> "RouterLoad":
        """Returns the load of one layer: [E].

        Args:
          chosen, shares: the numbers of the chosen experts [B, T, C], and `Router.shares`.
          real_BT: whether a token is no padding.
        """
        of_tokens = jax.nn.one_hot(chosen, shares.shape[-1], dtype=jnp.float32)
        real_BT1 = real_BT[..., None]
        chosen_E = jnp.sum(jnp.where(real_BT1, jnp.sum(of_tokens, axis=-2), 0), axis=(0, 1))
        return cls(chosen_E, jnp.sum(jnp.where(real_BT1, shares, 0), axis=(0, 1)))


def balance_loss(load: RouterLoad, of_batch: RouterLoad) -> Array:
    """Returns the share of some tokens in the load-balancing loss of a batch (2006.16668).

        loss = E sum_e f_e P_e

    f_e is the number of tokens that chose expert e, and P_e the sum of its shares, both over all
    tokens and all layers, and divided by the number of both. It is the number of experts that a
    token chooses if the load is equal, and more if not. f is a constant, so the losses of parts of
    a batch add up to that of the batch. (Models of transformers compute it in the same way from
    the tokens of a microbatch: 2501.11873 shows that those of a batch need less balance.)

    Args:
      load: of the tokens.
      of_batch: of all tokens of the batch.
    """
    experts = load.shares_ME.shape[-1]
    # Shares sum to 1 for each token in each layer.
    tokens = jnp.maximum(jnp.sum(of_batch.shares_ME), 1)
    f_E = jax.lax.stop_gradient(jnp.sum(of_batch.chosen_ME, axis=0) / tokens)
    return experts * jnp.sum(f_E * jnp.sum(load.shares_ME, axis=0)) / jax.lax.stop_gradient(tokens)


class Balance(NamedTuple):
    """What balances experts by their biases.

    Attributes:
      bias_step_ME: what is added to b of each of E experts in M layers.
      load_excess: the load of the most loaded expert of a layer over the mean one, minus 1; the
        mean over layers.
    """

    bias_step_ME: Array
    load_excess: Array


def balanced(chosen_ME: Array, rate: float) -> Balance:
    """Returns what is added to the bias b of each expert, to even their load (2408.15664).

        step = rate sign(mean over experts of n - n)

    Args:
      chosen_ME: n, how many tokens chose each expert of a layer.
    """
    mean_M1 = jnp.mean(chosen_ME, axis=-1, keepdims=True)
    excess_M = jnp.max(chosen_ME, axis=-1) / jnp.maximum(mean_M1[:, 0], 1e-9) - 1
    return Balance(rate * jnp.sign(mean_M1 - chosen_ME), jnp.mean(excess_M))


PLAIN = Router()
