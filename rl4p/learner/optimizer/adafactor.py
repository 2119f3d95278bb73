"""Adafactor."""

from dataclasses import dataclass

import optax

from rl4p.configuration.bounds import AboveZero, NonNegative, Positive, Share
from rl4p.learner.optimizer.blocks import blockwise
from rl4p.learner.optimizer.options import OptimizerOptions


@dataclass(frozen=True, kw_only=True)
class Adafactor(OptimizerOptions):
    """Adafactor (1804.04235): a second moment of a row and a column for each matrix.

        nu <- d nu + (1 - d) (g^2 + 1e-30),   d = 1 - t^-decay_exponent, in the t-th update
        u = g / sqrt(nu),   nu of an entry = its row's mean x its column's mean / the mean of all
        direction u / max(1, rms(u) / clip_rms) x max(1e-3, rms(parameter))

    Each matrix of each layer and expert stands for itself, in the row and column and in every rms.
    The learning rate is thus relative to the parameters'. The paper's own schedule is left out.
    Momentum, an average of the directions, is off by default; `moment_dtype` is that of it alone.

    Attributes:
      decay_exponent: of the second moment's decay, which begins at 0 and goes to 1.
      min_factored_size: a matrix with a shorter side has its second moment whole.
      clip_rms: the root mean square that a larger u is scaled down to.
      relative: times the parameter's root mean square; false makes the learning rate absolute.
      momentum: 0 keeps none.
    """

    learning_rate: NonNegative = 2e-3
    decay_exponent: Share = 0.8
    min_factored_size: Positive = 128
    clip_rms: AboveZero = 1.0
    relative: bool = True
    momentum: Share = 0.0

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
