"""Adafactor."""

from dataclasses import dataclass

import optax

from rl4p.configuration.bounds import AboveZero, NonNegative, Positive, Share
from rl4p.learner.optimizer.blocks import blockwise
from rl4p.learner.optimizer.options import MomentDtype, OptimizerOptions


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
                    decay_rate=self.decay_exponent,
                    min_dim_size_to_factor=self.min_factored_size,
                ),
                optax.clip_by_block_rms(self.clip_rms),
                optax.scale_by_param_block_rms() if self.relative else optax.identity(),
            )
        )
        if self.momentum == 0:
            return self.descent(direction)
        average = optax.ema(self.momentum, debias=False, accumulator_dtype=self.moment_dtype)
        return self.descent(optax.chain(direction, average))
