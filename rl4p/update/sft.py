"""Supervised fine-tuning."""

from dataclasses import dataclass

from rl4p.base.types import Array, TrainingBatch
from rl4p.learner.update_options import UpdateOptions


@dataclass(frozen=True, kw_only=True)
class SFT(UpdateOptions):
    """The negative log-likelihood of the responses, per token: -log pi on the loss mask.

    The loss ignores advantages. With `rollout=demonstrations` this is supervised training; with the
    policy's own samples it trains on all of them, including the bad ones.

    Attributes:
      pack: whether several short sequences share a row (`learner/packing.py`). It changes memory
        and speed, never the gradient.
    """

    reads_advantages = False

    pack: bool = False

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        return -logprobs_BT, {}
