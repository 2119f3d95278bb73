"""Length-Unbiased Sequence Policy Optimization."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import NonNegative, Share
from rl4p.learner.ratio import (
    RatioOptions,
    clamped_exp,
    clipped_surrogate,
    masked_advantages,
    sequence_mean,
)
from rl4p.learner.update_options import Aggregation


@dataclass(frozen=True, kw_only=True)
class LUSPO(RatioOptions):
    """LUSPO (2602.05261), the sequence loss of GSPO times the length of the sequence:

        s = exp(mean_t log(pi / pi_old))
        loss = (1/N) sum_b l_b max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high))

    Each of the l_b tokens has the loss max(...), so that `sequence_mean_token_sum`, the default
    here, gives this formula (as TRL's `luspo` with ratios of sequences). `sequence_mean_token_mean`
    would give GSPO.

    Attributes:
      clip_low, clip_high: from the paper's experiments.
    """

    ratio_options = frozenset({"clip_low", "clip_high"})

    clip_low: Share = 2e-3
    clip_high: NonNegative = 2.5e-3
    aggregation: Aggregation = "sequence_mean_token_sum"

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        log_ratio_BT = self.log_ratio(logprobs_BT, batch)
        ratio_B1 = clamped_exp(sequence_mean(log_ratio_BT, batch))
        ratio_BT = jnp.broadcast_to(ratio_B1, logprobs_BT.shape)
        return clipped_surrogate(ratio_BT, masked_advantages(batch), self.clip_low, self.clip_high)
