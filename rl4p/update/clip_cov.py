"""PPO's loss without the gradient of the tokens that reduce the entropy most."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import NonNegative, Share, TopShare
from rl4p.learner.masking import largest, share_count
from rl4p.learner.ratio import clamped_exp, clipped_surrogate, log_ratio, token_covariance
from rl4p.learner.update_options import UpdateOptions


@dataclass(frozen=True, kw_only=True)
class ClipCov(UpdateOptions):
    """Clip-Cov (2505.22617): PPO's loss, set to 0 on tokens chosen by their covariance:

        (A - mean A)(log pi - mean log pi), strictly between covariance_low and covariance_high

    log pi is the proximal policy's (`token_covariance`). The paper draws share x tokens at random
    from those in the bounds. Here the largest are chosen, ties included, so that neither order nor
    key matters. The paper chooses among tokens that PPO does not clip. Here PPO's clip is ignored,
    because it changes from update to update, so a chosen token may already have no gradient.

    Attributes:
      clip_low, clip_high: bounds of PPO's clip.
      share: share of the minibatch's loss tokens to choose, at least one token; 2e-4 in verl.
      covariance_low, covariance_high: far above the mean covariance, and below outliers.
    """

    reads = frozenset({"proximal_logprobs"})
    ratio_options = frozenset({"clip_low", "clip_high"})

    clip_low: Share = 0.2
    clip_high: NonNegative = 0.2
    share: TopShare = 2e-4
    covariance_low: NonNegative = 1.0
    covariance_high: NonNegative = 5.0

    def prepare(self, batch: TrainingBatch) -> dict[str, Array]:
        """Returns `dropped`: true on the tokens of the minibatch that lose their gradient."""
        covariance_BT = token_covariance(batch)
        between = (covariance_BT > self.covariance_low) & (covariance_BT < self.covariance_high)
        count = share_count(batch.loss_mask_BT, self.share)
        return {"dropped": largest(covariance_BT, batch.loss_mask_BT & between, count)}

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        ratio = clamped_exp(log_ratio(logprobs_BT, batch.scores["proximal_logprobs"], batch))
        loss_BT, extras = clipped_surrogate(
            ratio, batch.advantages_BT, self.clip_low, self.clip_high
        )
        dropped = batch.scores["dropped"]
        return jnp.where(dropped, 0.0, loss_BT), extras | {"clip_cov": dropped}
