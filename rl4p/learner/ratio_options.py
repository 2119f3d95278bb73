"""The options of updates whose loss has a ratio of probabilities."""

from dataclasses import dataclass
from typing import Literal

from rl4p.base.types import Array, TrainingBatch
from rl4p.learner.ratio import log_ratio, sampler_logprobs
from rl4p.learner.update_options import UpdateOptions


@dataclass(frozen=True, kw_only=True)
class RatioOptions(UpdateOptions):
    """Options of an update with the ratio pi / pi_old.

    Attributes:
      old_policy: pi_old. `proximal` is the policy at the start of the step. The loss then limits
        what the step changes, and `correction` weighs for the difference between that policy and
        the one that sampled (decoupled PPO, 2110.00641; AReaL, 2505.24298). `behaviour` is the
        policy that sampled: the ratio is the full importance weight, the clip acts on stale tokens
        from the first update on, and `correction` should stay at none. Tokens that no policy
        sampled have `proximal` in both cases.
    """

    old_policy: Literal["proximal", "behaviour"] = "proximal"

    def old_logprobs(self, batch: TrainingBatch) -> Array:
        """Returns log pi_old of the tokens: [B, T]."""
        if self.old_policy == "behaviour":
            return sampler_logprobs(batch)
        return batch.scores["proximal_logprobs"]

    def log_ratio(self, logprobs_BT: Array, batch: TrainingBatch) -> Array:
        """Returns log(pi / pi_old), not clamped: [B, T]; 0 outside the loss mask."""
        return log_ratio(logprobs_BT, self.old_logprobs(batch), batch)
