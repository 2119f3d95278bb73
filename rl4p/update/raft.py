"""Reward-ranked fine-tuning."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.learner.update_options import UpdateOptions


@dataclass(frozen=True, kw_only=True)
class RAFT(UpdateOptions):
    """RAFT (2304.06767), per token: -log pi where A > 0, 0 elsewhere.

    The advantage selects samples but does not weight them: `advantage=grpo` selects those above the
    group's mean, and `pass_k` the best sample only, as in the paper. The aggregation divides by all
    samples, where the paper divides by the selected ones.
    """

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        kept = batch.advantages_BT > 0
        return jnp.where(kept, -logprobs_BT, 0.0), {"kept": kept}
