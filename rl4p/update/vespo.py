"""Variational sequence-level soft policy optimization."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import NonNegative
from rl4p.learner.ratio import RatioOptions, sequence_sum


@dataclass(frozen=True, kw_only=True)
class VESPO(RatioOptions):
    """VESPO (2602.10693), in the form of TRL, with a Gamma kernel of the sequence's ratio:

        w = prod_t pi / pi_old over the row's loss tokens
        phi = w^k exp(lambda (1 - w)), 1 at w = 1
        loss = -sg[phi] A log pi

    The sign of A selects k and lambda; A = 0 counts as positive, as in TRL. log w is the sum of the
    tokens' log-ratios, not their mean. Each log-ratio and the sum are clamped to +-20 (the lower
    bound in TRL is log 1e-8). TRL multiplies the correction for the sampler into w; here
    `correction` is a factor of the loss. TRL averages over all tokens (`token_mean`).

    Attributes:
      k_positive, lambda_positive: where A >= 0.
      k_negative, lambda_negative: where A < 0.
    """

    ratio_options = frozenset({"k_positive", "lambda_positive", "k_negative", "lambda_negative"})

    k_positive: NonNegative = 2.0
    lambda_positive: NonNegative = 3.0
    k_negative: NonNegative = 3.0
    lambda_negative: NonNegative = 2.0

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        log_ratio_BT = self.log_ratio(logprobs_BT, batch)
        clamped_BT = jnp.clip(jax.lax.stop_gradient(log_ratio_BT), -20.0, 20.0)
        log_w_B1 = jnp.clip(sequence_sum(clamped_BT, batch), -20.0, 20.0)

        def kernel(k: float, rate: float) -> Array:
            return jnp.exp(k * log_w_B1 + rate * (1.0 - jnp.exp(log_w_B1)))

        phi_BT = jnp.where(
            batch.advantages_BT >= 0,
            kernel(self.k_positive, self.lambda_positive),
            kernel(self.k_negative, self.lambda_negative),
        )
        return -phi_BT * batch.advantages_BT * logprobs_BT, {"vespo_weight": phi_BT}
