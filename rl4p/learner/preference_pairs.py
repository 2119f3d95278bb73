"""The pairs of good and bad samples in the groups of a batch, for losses that compare them."""

from typing import NamedTuple

import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.learner.ratio import sequence_sum


class GroupPairs(NamedTuple):
    """Each sample with A > 0 beside each sample with A < 0 of its group, which its id names.

    Samples with A = 0 and rows without loss tokens are in no pair.

    Attributes:
      sign_BB: +1 if row b is chosen and row c is rejected, -1 for the reverse, 0 for no pair.
    """

    sign_BB: Array

    @classmethod
    def of(cls, batch: TrainingBatch) -> "GroupPairs":
        """Returns the pairs of a batch, whose advantages have one sign in a row."""
        sign_B1 = jnp.sign(sequence_sum(batch.advantages_BT, batch))
        groups_B = batch.trajectories.group_ids_B
        same_BB = groups_B[:, None] == groups_B[None, :]
        return cls(jnp.where(same_BB & (sign_B1 * sign_B1.T < 0), sign_B1, 0.0))

    def margins(self, score_B1: Array) -> Array:
        """Returns the score of the chosen row minus that of the rejected one: [B, B]."""
        return jnp.where(self.sign_BB != 0, self.sign_BB * (score_B1 - score_B1.T), 0.0)

    def of_chosen(self, score_B1: Array) -> Array:
        """Returns the score of the chosen row of each pair: [B, B]."""
        return jnp.where(self.sign_BB > 0, score_B1, score_B1.T)

    def mean(self, values_BB: Array, like_BT: Array) -> Array:
        """Returns the mean over the pairs of each row, on each of its tokens: [B, T]."""
        pairs_B1 = jnp.sum(jnp.abs(self.sign_BB), axis=1, keepdims=True)
        total_B1 = jnp.sum(jnp.where(self.sign_BB != 0, values_BB, 0.0), axis=1, keepdims=True)
        return jnp.broadcast_to(total_B1 / jnp.maximum(pairs_B1, 1), like_BT.shape)

    def metrics(self, margin_BB: Array, like_BT: Array) -> dict[str, Array]:
        """Returns the margin, and whether it is above 0, as means over the pairs of each row."""
        return {
            "preference_margin": self.mean(margin_BB, like_BT),
            "preference_accuracy": self.mean((margin_BB > 0).astype(margin_BB.dtype), like_BT),
        }
