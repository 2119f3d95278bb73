"""Optimizers from optax, built from the configuration."""

import math
from dataclasses import dataclass, fields
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
import optax.contrib

from rl4p.base.types import Array, Params
from rl4p.configuration.bounds import AboveZero, Natural, NonNegative, Positive, Share
from rl4p.distributed.partition import declared

Schedule = Literal["constant", "linear", "cosine"]


def is_matrix(params: Params) -> Params:
    """Returns a tree that is True at matrices, stacked or not.

    A kernel of one dimension (a head with one output) is a vector.
    """
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: declared(path).matrix and leaf.ndim >= 2, params
    )


def is_inner_matrix(params: Params) -> Params:
    """Returns a tree that is True at matrices, except those from or to the vocabulary or labels."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: declared(path).inner and leaf.ndim >= 2, params
    )


def stacked_axes(params: Params) -> Params:
    """Returns the number of leading axes of each leaf that stack blocks: 0, 1 (L) or 2 (L, E)."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf, matrix: (
            leaf.ndim - 2 if matrix else int(any(entry.key == "layers" for entry in path))
        ),
        params,
        is_matrix(params),
    )


def blockwise(transform: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns a transform that treats each block of each leaf as if it were the only parameter.

    The state is a tree like the parameters; each leaf holds the stacked states of its blocks.
    """

    def over_blocks(function: Any, leaf: Array, axes: int, *others: Any) -> Any:
        shape = leaf.shape[:axes]
        blocks = math.prod(shape)
        flat = jax.tree.map(lambda x: x.reshape(blocks, *x.shape[axes:]), (leaf, *others))
        results = jax.vmap(function)(*flat)
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), results)

    def init(params: Params) -> Any:
        return jax.tree.map(
            lambda param, axes: over_blocks(transform.init, param, axes),
            params,
            stacked_axes(params),
        )

    def update(gradient: Params, state: Any, params: Params | None = None) -> tuple[Params, Any]:
        if params is None:
            raise ValueError("A blockwise transform needs the parameters: pass params to update.")
        leaves, treedef = jax.tree.flatten(gradient)
        axes, states = jax.tree.leaves(stacked_axes(params)), treedef.flatten_up_to(state)
        blocks = zip(leaves, axes, states, jax.tree.leaves(params), strict=True)
        results = [over_blocks(transform.update, *leaf_and_rest) for leaf_and_rest in blocks]
        updates, states = zip(*results, strict=True)
        return treedef.unflatten(updates), treedef.unflatten(states)

    return optax.GradientTransformation(init, update)  # type: ignore[arg-type]


# Optax also rounds the decay of a moment to this dtype: in bfloat16 a decay of 0.9 acts as 0.898,
# and 0.99 as 0.988.
MomentDtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class OptimizerOptions:
    """Options of an optimizer: the learning rate, weight decay and gradient clipping.

    Attributes:
      learning_rate: peak learning rate.
      schedule, warmup_steps, total_steps, final_fraction: see `learning_rate_at`.
      weight_decay: decoupled weight decay (1711.05101), for matrices only (`is_matrix`).
      max_grad_norm: global norm that larger gradients are scaled down to; 0 disables clipping.
      offload: whether the state of the optimizer stays in the memory of the host. It is on the
        devices only while it changes, after the memory of the activations is freed.
    """

    learning_rate: NonNegative
    schedule: Schedule = "constant"
    warmup_steps: Natural = 0
    total_steps: Positive = 1
    final_fraction: Share = 0.0
    weight_decay: NonNegative = 0.0
    max_grad_norm: NonNegative = 1.0
    offload: bool = False

    def __post_init__(self) -> None:
        if self.schedule == "constant" and self.final_fraction:
            raise ValueError(
                f"final_fraction={self.final_fraction} has no effect with schedule=constant: "
                "choose schedule=linear or schedule=cosine, or leave it out."
            )

    def unreached_rates(self, steps: int) -> list[str]:
        """Returns a sentence for each part of the schedule that a run of `steps` steps misses.

        They are no errors, because a first try has few steps.
        """
        falls, sentences = self.schedule != "constant", []
        if self.warmup_steps >= steps:
            last = float(self.learning_rate_at(steps - 1))
            sentences.append(
                f"The warm-up of the learning rate, optimizer.warmup_steps={self.warmup_steps}, is "
                f"not shorter than the run, steps={steps}: the last step has {last:.3g} of a peak "
                f"of {self.learning_rate:.3g}. Set fewer warm-up steps, or more steps."
            )
        elif falls and self.warmup_steps >= self.total_steps:
            sentences.append(
                f"The warm-up of the learning rate, optimizer.warmup_steps={self.warmup_steps}, "
                f"ends after its schedule, optimizer.total_steps={self.total_steps}: set fewer "
                "warm-up steps, or a later end."
            )
        if falls and self.total_steps < steps and self.final_fraction == 0:
            sentences.append(
                f"The learning rate is 0 after step {max(self.total_steps, self.warmup_steps)} of "
                f"{steps}, because optimizer.schedule={self.schedule} ends there: the other steps "
                "train nothing unless optimizer.final_fraction is above 0."
            )
        return sentences

    def refuse_without_momentum(self, *options: str) -> None:
        """Refuses options that differ from their defaults although there is no momentum."""
        for each in fields(self):
            if each.name in options and (value := getattr(self, each.name)) != each.default:
                raise ValueError(
                    f"{each.name}={str(value).lower()} has no effect with momentum=0: set "
                    "momentum, or leave it out."
                )

    def descent(self, direction: optax.GradientTransformation) -> optax.GradientTransformation:
        """Returns the transform -(direction + weight_decay x parameter), with clipped gradients.

        This is the update at learning rate 1; the training step scales it by `learning_rate_at`.
        """
        decay = optax.add_decayed_weights(self.weight_decay, mask=is_matrix)
        update = optax.chain(direction, decay, optax.scale(-1.0))
        if self.max_grad_norm == 0:
            return update
        return optax.chain(optax.clip_by_global_norm(self.max_grad_norm), update)

    def learning_rate_at(self, step: Array | int) -> Array:
        """Returns the learning rate of a step (counted from 0), float32.

        The warm-up is linear over `warmup_steps` and reaches `learning_rate` at its last step. Then
        the learning rate is constant, or falls to `final_fraction` of its peak at `total_steps`,
        along a line or half a cosine.
        """
        step = jnp.asarray(step, jnp.float32)
        falling = max(self.total_steps - self.warmup_steps, 1)
        warmup = jnp.minimum(1.0, (step + 1) / max(self.warmup_steps, 1))
        progress = jnp.clip((step - self.warmup_steps) / falling, 0.0, 1.0)
        remaining = {
            "constant": jnp.ones_like(progress),
            "linear": 1.0 - progress,
            "cosine": 0.5 * (1.0 + jnp.cos(jnp.pi * progress)),
        }[self.schedule]
        final = self.final_fraction
        return self.learning_rate * warmup * (final + (1.0 - final) * remaining)


@dataclass(frozen=True, kw_only=True)
class AdamW(OptimizerOptions):
    """AdamW (1711.05101), with moments that are corrected for their bias when they are used:

        mu <- b1 mu + (1 - b1) g,   nu <- b2 nu + (1 - b2) g^2
        direction mu / (sqrt(nu) + epsilon)

    `moment_dtype` is the dtype of mu only. At b2 = 0.999, the changes of nu would be below the
    resolution of bfloat16.
    """

    learning_rate: NonNegative = 5e-5
    b1: Share = 0.9
    b2: Share = 0.999
    epsilon: AboveZero = 1e-8
    moment_dtype: MomentDtype = "float32"

    @staticmethod
    def usual_rate(parameters: int, *, adapters: bool) -> float:
        """Returns the usual learning rate for a model with N parameters.

            min(max(1000 / N, 1e-6), 5e-5), and ten times as much for adapters

        This is 7e-6 for SmolLM2-135M and 2e-6 for Qwen2.5-0.5B. Models of 1B to 8B parameters are
        mostly trained with 1e-6 (2402.03300). Adapters need about ten times the rate of all
        parameters (J. Schulman, "LoRA Without Regret", 2025). The shipped policy has 5e-5.
        """
        rate = min(max(1000 / parameters, 1e-6), 5e-5)
        return 10 * rate if adapters else rate

    def unusual_rate(self, parameters: int, *, adapters: bool) -> str | None:
        """Returns a sentence about a rate that is six times above or below the usual one."""
        usual, rate = self.usual_rate(parameters, adapters=adapters), self.learning_rate
        if usual / 6 <= rate <= usual * 6:
            return None
        return (
            f"optimizer.learning_rate={rate:g} is far {'above' if rate > usual else 'below'} the "
            f"usual rate for {'adapters of a model' if adapters else 'a model'} of "
            f"{parameters / 1e6:,.0f}M parameters: try optimizer.learning_rate={usual:.0e}."
        )

    def transform(self) -> optax.GradientTransformation:
        return self.descent(
            optax.scale_by_adam(self.b1, self.b2, self.epsilon, mu_dtype=self.moment_dtype)
        )


@dataclass(frozen=True, kw_only=True)
class SGD(OptimizerOptions):
    """Gradient descent with momentum:

        trace <- momentum trace + g,   direction trace, or g + momentum trace (Nesterov)

    The trace is a sum, not a mean: it grows to g / (1 - momentum). Without momentum there is no
    trace. `moment_dtype` is the dtype of the trace.
    """

    learning_rate: NonNegative = 5e-3
    momentum: Share = 0.9
    nesterov: bool = False
    moment_dtype: MomentDtype = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum == 0:
            self.refuse_without_momentum("nesterov", "moment_dtype", "offload")

    def transform(self) -> optax.GradientTransformation:
        if self.momentum == 0:
            return self.descent(optax.identity())
        return self.descent(
            optax.trace(self.momentum, self.nesterov, accumulator_dtype=self.moment_dtype)
        )


@dataclass(frozen=True, kw_only=True)
class Lion(OptimizerOptions):
    """Lion (2302.06675), with one moment:

        direction sign(b1 mu + (1 - b1) g),   then   mu <- b2 mu + (1 - b2) g

    Every entry moves by the full learning rate. The paper's learning rate is 3 to 10 times smaller
    than AdamW's, and its weight decay larger by the same factor. The default here is AdamW's, which
    suits runs of few steps. `moment_dtype` is the dtype of mu.
    """

    learning_rate: NonNegative = 5e-5
    b1: Share = 0.9
    b2: Share = 0.99
    moment_dtype: MomentDtype = "float32"

    def transform(self) -> optax.GradientTransformation:
        return self.descent(optax.scale_by_lion(self.b1, self.b2, mu_dtype=self.moment_dtype))


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
            # Of the axes before the last two, optax makes a batch.
            weight_dimension_numbers=lambda matrices: jax.tree.map(
                lambda _: optax.contrib.MuonDimensionNumbers(-2, -1), matrices
            ),
        )
        rest = optax.scale_by_adam(self.b1, self.b2, self.epsilon, mu_dtype=self.moment_dtype)
        scale = optax.stateless(
            lambda updates, _: jax.tree.map(
                lambda x: self.update_rms * max(x.shape[-2:]) ** 0.5 * x, updates
            )
        )
        return self.descent(
            optax.partition(
                {"muon": optax.chain(matrices, scale), "adamw": rest},
                lambda params: jax.tree.map(
                    lambda inner: "muon" if inner else "adamw", is_inner_matrix(params)
                ),
            )
        )


@dataclass(frozen=True, kw_only=True)
class Adafactor(OptimizerOptions):
    """Adafactor (1804.04235), with the second moment of a matrix kept per row and per column:

        nu <- d nu + (1 - d) (g^2 + 1e-30),   d = 1 - t^-decay_exponent, in the t-th update
        u = g / sqrt(nu),   nu of an entry = its row's mean x its column's mean / the mean of all
        direction u / max(1, rms(u) / clip_rms) x max(1e-3, rms(parameter))

    Means and rms are computed for each matrix of each layer and expert separately. The last factor
    makes the learning rate relative to the parameter. The paper's own schedule is omitted.
    Momentum, an average of the directions, is off by default; `moment_dtype` is its dtype only.

    Attributes:
      decay_exponent: exponent in d, the decay of the second moment, which grows from 0 to 1.
      min_factored_size: a matrix with a shorter side keeps its full second moment.
      clip_rms: upper bound of the root mean square of u.
      relative: whether to apply the last factor; if false, the learning rate is absolute.
      momentum: decay of the average; 0 disables momentum.
    """

    learning_rate: NonNegative = 2e-3
    decay_exponent: Share = 0.8
    min_factored_size: Positive = 128
    clip_rms: AboveZero = 1.0
    relative: bool = True
    momentum: Share = 0.0
    moment_dtype: MomentDtype = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum == 0:
            self.refuse_without_momentum("moment_dtype")

    def transform(self) -> optax.GradientTransformation:
        direction = blockwise(
            optax.chain(
                optax.scale_by_factored_rms(
                    decay_rate=self.decay_exponent, min_dim_size_to_factor=self.min_factored_size
                ),
                optax.clip_by_block_rms(self.clip_rms),
                optax.scale_by_param_block_rms() if self.relative else optax.identity(),
            )
        )
        if self.momentum == 0:
            return self.descent(direction)
        average = optax.ema(self.momentum, debias=False, accumulator_dtype=self.moment_dtype)
        return self.descent(optax.chain(direction, average))
