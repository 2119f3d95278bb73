"""The policy gradient without a ratio."""

from dataclasses import dataclass

from rl4p.base.types import Array, TrainingBatch
from rl4p.learner.update_options import UpdateOptions


@dataclass(frozen=True, kw_only=True)
class Reinforce(UpdateOptions):
    """REINFORCE (Williams 1992), per token, to minimise: -A log pi.

    With `advantage=constant` this is supervised training on the responses.
    """

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        return -batch.advantages_BT * logprobs_BT, {}
