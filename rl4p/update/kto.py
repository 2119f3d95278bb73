"""Kahneman-Tversky optimization, from responses of which each is good or bad."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import AboveZero, NonNegative
from rl4p.learner.ratio import sequence_mean, sequence_sum
from rl4p.learner.update_options import Aggregation, UpdateOptions


@dataclass(frozen=True, kw_only=True)
class KTO(UpdateOptions):
    """KTO (2402.01306), per sequence. With r = log pi(y | x) - log pi_reference(y | x),

        loss = desirable_weight (1 - sigmoid(beta (r - z)))        A > 0
        loss = undesirable_weight (1 - sigmoid(beta (z - r)))      A < 0
        z = max(0, mean of log pi(y' | x) - log pi_reference(y' | x))

    z estimates the divergence from the reference, without a gradient, over the rows of a minibatch.
    y' is a response to another prompt: that of the row `group_size` rows before, as in TRL with
    groups of one. The policy of z is that at the start of the step.

    Only the sign of A counts, and no sample needs a partner: rows of a file with a label
    (`reward=labels`, `advantage=reinforce`), both responses of preference pairs
    (`advantage=preference`), or the policy's own samples. Samples with A = 0 add a loss of 0. The
    paper's sum over one batch is `sequence_mean_token_mean`, the default here.

    Attributes:
      beta: how fast the loss saturates; 0.1 in the paper.
      desirable_weight, undesirable_weight: lambda_D and lambda_U. The paper keeps lambda_D n_D
        between 1 and 4/3 of lambda_U n_U, for n_D good and n_U bad responses.
    """

    reads_signs: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset({"reference_logprobs", "mismatched_log_ratios"})

    beta: AboveZero = 0.1
    desirable_weight: NonNegative = 1.0
    undesirable_weight: NonNegative = 1.0
    aggregation: Aggregation = "sequence_mean_token_mean"

    def prepare(self, batch: TrainingBatch) -> dict[str, Array]:
        """Returns z, on all tokens: [B, T]."""
        ratio_B1 = sequence_mean(batch.scores["mismatched_log_ratios"], batch)
        rows = jnp.sum(jnp.any(batch.loss_mask_BT, axis=1), dtype=ratio_B1.dtype)
        mean = jnp.sum(ratio_B1) / jnp.maximum(rows, 1)
        z = jnp.maximum(jax.lax.stop_gradient(mean), 0.0)
        return {"kto_reference": jnp.broadcast_to(z, batch.loss_mask_BT.shape)}

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        ratio_B1 = sequence_sum(logprobs_BT - batch.scores["reference_logprobs"], batch)
        sign_B1 = jnp.sign(sequence_sum(batch.advantages_BT, batch))
        z_BT = batch.scores["kto_reference"]
        weight_B1 = jnp.where(sign_B1 > 0, self.desirable_weight, self.undesirable_weight)
        # 1 - sigmoid(x) = sigmoid(-x)
        loss_BT = weight_B1 * jax.nn.sigmoid(-self.beta * sign_B1 * (ratio_B1 - z_BT))
        return jnp.where(sign_B1 == 0, 0.0, loss_BT), {"mismatched_kl": z_BT}
