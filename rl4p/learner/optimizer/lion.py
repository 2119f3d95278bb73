"""Lion."""

from dataclasses import dataclass

import optax

from rl4p.configuration.bounds import NonNegative, Share
from rl4p.learner.optimizer.options import MomentDtype, OptimizerOptions


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
