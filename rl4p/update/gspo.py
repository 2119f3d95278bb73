"""Group Sequence Policy Optimization."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import NonNegative, Share
from rl4p.learner.ratio import (
    RatioOptions,
    clamped_exp,
    clipped_surrogate,
    log_ratio,
    masked_advantages,
    sequence_mean,
)
from rl4p.learner.update_options import Aggregation


@dataclass(frozen=True, kw_only=True)
class GSPO(RatioOptions):
    """GSPO (2507.18071), whose ratio of a sequence is the geometric mean of its tokens' ratios:

        s = exp(mean_t log(pi / pi_old)), the mean over the row's loss tokens
        loss = max(-A s, -A clip(s, 1 - clip_low, 1 + clip_high)), on every token of the row

    `sequence_mean_token_mean`, the default here, gives the paper's mean over sequences. The mean
    log-ratio is clamped to +-20 (verl: to at most 10).

    Attributes:
      clip_low, clip_high: from the paper's experiments, far narrower than a token's clip.
      form: `sequence`, or `token` (GSPO-token, used by verl): s_t = sg[s] pi_t / sg[pi_t]. The
        value is the same, but the gradient gives each token its own advantage. Both forms have the
        same gradient if A is the same on all tokens of a row.
    """

    ratio_options = frozenset({"clip_low", "clip_high"})

    clip_low: Share = 3e-4
    clip_high: NonNegative = 4e-4
    form: Literal["sequence", "token"] = "sequence"
    aggregation: Aggregation = "sequence_mean_token_mean"

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        mean_B1 = sequence_mean(self.log_ratio(logprobs_BT, batch), batch)
        if self.form == "sequence":
            ratio_BT = jnp.broadcast_to(clamped_exp(mean_B1), logprobs_BT.shape)
        else:
            # Its value is 0, and its gradient is the gradient of the token's own log-probability.
            own_BT = log_ratio(logprobs_BT, jax.lax.stop_gradient(logprobs_BT), batch)
            ratio_BT = jax.lax.stop_gradient(clamped_exp(mean_B1)) * jnp.exp(own_BT)
        return clipped_surrogate(ratio_BT, masked_advantages(batch), self.clip_low, self.clip_high)
