"""Tapered Off-Policy REINFORCE."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.learner.ratio import RatioOptions, clamped_exp, sequence_sum


@dataclass(frozen=True, kw_only=True)
class TOPR(RatioOptions):
    """TOPR (2503.14286), with the supervised loss on good samples and a tapered weight on bad ones:

        loss = -A log pi where A >= 0, -sg[clip(rho, 0, 1)] A log pi where A < 0

    rho is pi / pi_old. The paper has `old_policy=behaviour`; by default `correction` adds the
    difference.

    Attributes:
      level: the level of rho: each `token`, or the `sequence`, where it is the product over its
        loss tokens, as in the paper.
    """

    ratio_options = frozenset({"level"})

    level: Literal["token", "sequence"] = "token"

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        log_ratio_BT = self.log_ratio(logprobs_BT, batch)
        if self.level == "sequence":
            log_ratio_BT = jnp.broadcast_to(sequence_sum(log_ratio_BT, batch), log_ratio_BT.shape)
        taper = jax.lax.stop_gradient(jnp.minimum(clamped_exp(log_ratio_BT), 1.0))
        bad = batch.advantages_BT < 0
        weight = jnp.where(bad, taper, 1.0)
        return -weight * batch.advantages_BT * logprobs_BT, {"tapered": bad & (taper < 1.0)}
