"""Muon."""

from dataclasses import dataclass

import jax
import optax
import optax.contrib

from rl4p.base.types import Params
from rl4p.configuration.bounds import AboveZero, NonNegative, Positive, Share
from rl4p.learner.optimizer.blocks import is_inner_matrix
from rl4p.learner.optimizer.options import MomentDtype, OptimizerOptions


@dataclass(frozen=True, kw_only=True)
class Muon(OptimizerOptions):
    """Momentum orthogonalised by Newton-Schulz (K. Jordan, 2024), with the scale of 2502.16982:

        mu <- momentum mu + (1 - momentum) g
        direction update_rms sqrt(max(in, out)) U V^T,   where mu = U S V^T

    Each matrix [in, out] of each layer and expert is handled separately; adapters are matrices too.
    With `nesterov`, mu takes one more step with the same gradient. Either mu is bias-corrected.
    Embeddings, heads, norms and biases use AdamW's direction instead. The scale gives a matrix the
    root mean square of an AdamW direction, so one learning rate serves both.

    `iterations` steps of the quintic iteration bring singular values to about 0.7 to 1.2, not to 1;
    values far below the largest end lower. The iteration runs in the gradient's dtype.
    `moment_dtype` is the dtype of mu, here and in AdamW.

    Attributes:
      momentum, nesterov, iterations: for the matrices.
      update_rms: root mean square of a matrix's direction if all singular values were 1.
      b1, b2: for the other parameters (AdamW).
      epsilon: for both: added to the norm that divides mu, and in AdamW.
    """

    learning_rate: NonNegative = 3e-4
    momentum: Share = 0.95
    nesterov: bool = True
    iterations: Positive = 5
    update_rms: AboveZero = 0.2
    b1: Share = 0.9
    b2: Share = 0.999
    epsilon: AboveZero = 1e-8
    moment_dtype: MomentDtype = "float32"

    def transform(self) -> optax.GradientTransformation:
        matrices = optax.contrib.scale_by_muon(
            ns_steps=self.iterations,
            beta=self.momentum,
            eps=self.epsilon,
            mu_dtype=self.moment_dtype,
            nesterov=self.nesterov,
            weight_dimension_numbers=last_two_axes,
        )
        rest = optax.scale_by_adam(self.b1, self.b2, self.epsilon, mu_dtype=self.moment_dtype)
        scale = optax.stateless(lambda updates, _: self.scaled(updates))
        return self.descent(
            optax.partition({"muon": optax.chain(matrices, scale), "adamw": rest}, labels)
        )

    def scaled(self, updates: Params) -> Params:
        return jax.tree.map(lambda x: self.update_rms * max(x.shape[-2:]) ** 0.5 * x, updates)


def last_two_axes(matrices: Params) -> Params:
    """Returns the axes of a matrix; optax treats the axes before them as a batch."""
    return jax.tree.map(lambda _: optax.contrib.MuonDimensionNumbers(-2, -1), matrices)


def labels(params: Params) -> Params:
    return jax.tree.map(lambda inner: "muon" if inner else "adamw", is_inner_matrix(params))
