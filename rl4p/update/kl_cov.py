"""A penalty on the tokens that reduce the entropy most."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import NonNegative, TopShare
from rl4p.learner.masking import largest, share_count
from rl4p.learner.ratio import clamped_exp, log_ratio, token_covariance
from rl4p.learner.update_options import UpdateOptions


@dataclass(frozen=True, kw_only=True)
class KLCov(UpdateOptions):
    """KL-Cov (2505.22617), per token, with rho = pi / pi_proximal:

        loss = -A rho, and + coefficient |log rho| on the tokens with the largest covariance

    The covariance is that of `token_covariance`, of the proximal policy. As in verl, nothing is
    clipped, and |log rho| measures the divergence from the proximal policy. Only covariances above
    0 are chosen, so none is if all advantages are equal. The penalty has no gradient at rho = 1, so
    it acts from the second update of a step on.

    Attributes:
      share: share of the minibatch's loss tokens, at least one, ties included; 2e-4 in verl.
      coefficient: weight of the penalty.
    """

    reads = frozenset({"proximal_logprobs"})
    ratio_options = frozenset({"share", "coefficient"})

    share: TopShare = 2e-4
    coefficient: NonNegative = 1.0

    def prepare(self, batch: TrainingBatch) -> dict[str, Array]:
        """Returns `penalised`: true on the tokens of the minibatch that get the penalty."""
        covariance_BT = token_covariance(batch)
        count = share_count(batch.loss_mask_BT, self.share)
        candidates_BT = batch.loss_mask_BT & (covariance_BT > 0)
        return {"penalised": largest(covariance_BT, candidates_BT, count)}

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        log_ratio_BT = log_ratio(logprobs_BT, batch.scores["proximal_logprobs"], batch)
        penalised = batch.scores["penalised"]
        distance_BT = jnp.sign(log_ratio_BT) * log_ratio_BT  # jnp.abs has gradient 1 at 0
        penalty_BT = jnp.where(penalised, self.coefficient * distance_BT, 0.0)
        loss_BT = -batch.advantages_BT * clamped_exp(log_ratio_BT) + penalty_BT
        return loss_BT, {"kl_cov": penalised}
