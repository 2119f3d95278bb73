"""Reward-ranked fine-tuning."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.learner.update_options import UpdateOptions
from rl4p.types import Array, TrainingBatch


@dataclass(frozen=True, kw_only=True)
class RAFT(UpdateOptions):
    """RAFT (2304.06767), per token: -log pi where A > 0, 0 elsewhere.

    The advantage only chooses and never weighs: above the group's mean with `advantage=grpo`, the
    best sample alone, as in the paper, with `pass_k`. The other samples count in the mean of the
    aggregation: where the paper divides by the samples it kept, this divides by all.
    """

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        kept = batch.advantages_BT > 0
        return jnp.where(kept, -logprobs_BT, 0.0), {"kept": kept}
