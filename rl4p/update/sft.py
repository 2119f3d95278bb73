"""Supervised fine-tuning."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.learner.update_options import UpdateOptions


@dataclass(frozen=True, kw_only=True)
class SFT(UpdateOptions):
    """The negative log-likelihood of the responses, per token: -log pi on the loss mask.

    The loss ignores advantages. With `rollout=demonstrations` this is supervised training; with the
    policy's own samples it trains on all of them, including the bad ones.

    Attributes:
      dft: dynamic fine-tuning (2508.05629): the loss is -pi log pi with the first pi a constant, so
        improbable tokens do not dominate the gradient.
      pack: whether several short sequences share a row (`learner/packing.py`). It changes memory
        and speed, never the gradient.
    """

    reads_advantages = False

    dft: bool = False
    pack: bool = False

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        if not self.dft:
            return -logprobs_BT, {}
        weight_BT = jnp.exp(jnp.minimum(jax.lax.stop_gradient(logprobs_BT), 0.0))
        return -weight_BT * logprobs_BT, {}
