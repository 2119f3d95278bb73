"""Stochastic gradient descent."""

from dataclasses import dataclass

import optax

from rl4p.configuration.bounds import NonNegative, Share
from rl4p.learner.optimizer.options import MomentDtype, OptimizerOptions


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
