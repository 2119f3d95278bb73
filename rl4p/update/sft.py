"""Supervised fine-tuning."""

from dataclasses import dataclass

from rl4p.learner.update_options import UpdateOptions
from rl4p.types import Array, TrainingBatch


@dataclass(frozen=True, kw_only=True)
class SFT(UpdateOptions):
    """The negative log-likelihood of the responses, per token: -log pi on the loss mask.

    The advantages are not looked at. With `rollout=demonstrations` it is supervised training; with
    a policy's own samples it trains on all of them, the bad ones too.
    """

    reads_advantages = False

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        return -logprobs_BT, {}
