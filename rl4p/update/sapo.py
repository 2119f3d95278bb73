"""Soft Adaptive Policy Optimization."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import AboveZero
from rl4p.learner.ratio import RatioOptions, clamped_exp
from rl4p.learner.update_options import Aggregation


@dataclass(frozen=True, kw_only=True)
class SAPO(RatioOptions):
    """SAPO (2511.20347), per token, with a smooth gate instead of a clip:

        loss = -A (4 / tau) sigmoid(tau (rho - 1)), tau by the sign of A

    The derivative with respect to log pi is -A 4 p (1 - p) rho, with p the sigmoid: -A at rho = 1,
    and small far from it. `sequence_mean_token_mean`, the default here, averages within a sequence
    first, as the paper does.

    Attributes:
      tau_positive, tau_negative: where A > 0, and elsewhere; a larger tau shuts the gate sooner.
    """

    ratio_options = frozenset({"tau_positive", "tau_negative"})

    tau_positive: AboveZero = 1.0
    tau_negative: AboveZero = 1.05
    aggregation: Aggregation = "sequence_mean_token_mean"

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        ratio = clamped_exp(self.log_ratio(logprobs_BT, batch))
        positive = batch.advantages_BT > 0

        def gate(tau: float) -> Array:
            return jax.nn.sigmoid(tau * (ratio - 1.0)) * (4.0 / tau)

        gates = jnp.where(positive, gate(self.tau_positive), gate(self.tau_negative))
        return -batch.advantages_BT * gates, {}
