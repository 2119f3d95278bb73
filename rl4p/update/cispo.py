"""Clipped importance sampling weights instead of clipped gradients."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import NonNegative
from rl4p.learner.ratio import RatioOptions, clamped_exp


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

    ratio_options = frozenset({"bound", "low", "high"})

    bound: Literal["absolute", "relative"] = "absolute"
    low: NonNegative = 0.0
    high: NonNegative = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.bounds[0] > self.bounds[1]:
            raise ValueError(
                f"low={self.low} is above high={self.high}, so every weight would be equal: set a "
                "low below high."
            )

    @property
    def bounds(self) -> tuple[float, float]:
        """Returns the lowest and the highest weight."""
        if self.bound == "relative":
            return 1.0 - self.low, 1.0 + self.high
        return self.low, self.high

    def idle_options(self) -> list[str]:
        """Returns as for any ratio; bounds without 1 between them change a weight of 1 too."""
        return super().idle_options() if self.bounds[0] <= 1 <= self.bounds[1] else []

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        ratio = clamped_exp(self.log_ratio(logprobs_BT, batch))
        lowest, highest = self.bounds
        weight = jax.lax.stop_gradient(jnp.clip(ratio, lowest, highest))
        return -weight * batch.advantages_BT * logprobs_BT, {
            "clip_low": ratio < lowest,
            "clip_high": ratio > highest,
        }
