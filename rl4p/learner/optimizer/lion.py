"""Lion."""

from dataclasses import dataclass

import optax

from rl4p.configuration.bounds import NonNegative, Share
from rl4p.learner.optimizer.options import OptimizerOptions


@dataclass(frozen=True, kw_only=True)
class Lion(OptimizerOptions):
    """Lion (2302.06675), one moment:

        direction sign(b1 mu + (1 - b1) g),   then   mu <- b2 mu + (1 - b2) g

    Every entry moves by the whole learning rate: the paper takes one 3 to 10 times smaller than
    AdamW's, and a weight decay larger by as much. (The default is AdamW's, as few steps want it.)
    `moment_dtype` is that of mu.
    """

    learning_rate: NonNegative = 5e-5
    b1: Share = 0.9
    b2: Share = 0.99

    def transform(self) -> optax.GradientTransformation:
        return self.descent(optax.scale_by_lion(self.b1, self.b2, mu_dtype=self.moment_dtype))
