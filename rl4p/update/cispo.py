"""Clipped importance sampling weights instead of clipped gradients."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from rl4p.configuration.bounds import NonNegative
from rl4p.learner.ratio import clamped_exp
from rl4p.learner.ratio_options import RatioOptions
from rl4p.types import Array, TrainingBatch


@dataclass(frozen=True, kw_only=True)
class CISPO(RatioOptions):
    """CISPO (MiniMax-M1, 2506.13585), per token; no token loses its gradient (sg: stop_gradient):

        loss = -sg[clip(pi / pi_old, lowest, highest)] A log pi

    Attributes:
      bound: the meaning of `low` and `high`. `absolute`: the weight is clipped to [low, high] (TRL
        and ScaleRL 2510.13786, with high = 5). `relative`: to [1 - low, 1 + high] (the paper,
        verl).
      low, high: the paper has no lower bound, which is absolute 0 or relative 1.
    """

    bound: Literal["absolute", "relative"] = "absolute"
    low: NonNegative = 0.0
    high: NonNegative = 5.0

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        ratio = clamped_exp(self.log_ratio(logprobs_BT, batch))
        lowest, highest = self.low, self.high
        if self.bound == "relative":
            lowest, highest = 1.0 - self.low, 1.0 + self.high
        weight = jax.lax.stop_gradient(jnp.clip(ratio, lowest, highest))
        return -weight * batch.advantages_BT * logprobs_BT, {
            "clip_low": ratio < lowest,
            "clip_high": ratio > highest,
        }
