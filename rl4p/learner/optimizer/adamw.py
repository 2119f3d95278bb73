"""AdamW."""

from dataclasses import dataclass

import optax

from rl4p.configuration.bounds import AboveZero, NonNegative, Share
from rl4p.learner.optimizer.options import MomentDtype, OptimizerOptions


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

    def transform(self) -> optax.GradientTransformation:
        return self.descent(
            optax.scale_by_adam(self.b1, self.b2, self.epsilon, mu_dtype=self.moment_dtype)
        )
