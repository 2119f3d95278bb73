"""The losses of a reward model."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import NonNegative
from rl4p.learner.preferences import GroupPairs
from rl4p.learner.ratio import sequence_sum
from rl4p.learner.update_options import Aggregation, UpdateOptions


@dataclass(frozen=True, kw_only=True)
class RewardModel(UpdateOptions):
    """Trains the score r of a sequence, of a model with `score_head`. The loss of a pair is

        bradley_terry   -log sigmoid(r_chosen - r_rejected - m) + center (r_chosen + r_rejected)^2

    (2203.02155), with a margin m (2307.09288). That of a single response is

        pointwise       -log sigmoid(r)        A > 0
                        -log sigmoid(-r)       A < 0

    (the verifiers of 2110.14168, with a score for each response). r is read at the last token of
    the sequence other than the pad token, where transformers and `term=classifier` read it. Pairs
    and their mean are those of `update=dpo`.

    Attributes:
      kind: the loss.
      margins: whether m is the field `margin` of a row (`data.metadata_keys=[margin]`); otherwise
        it is 0.
      center: draws the mean of all scores to 0, which pairs leave open (2312.09244).
    """

    reads_signs: ClassVar[bool] = True
    trains_score: ClassVar[bool] = True

    kind: Literal["bradley_terry", "pointwise"] = "bradley_terry"
    margins: bool = False
    center: NonNegative = 0.0
    aggregation: Aggregation = "sequence_mean_token_mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "pointwise" and (self.margins or self.center):
            name = "margins" if self.margins else "center"
            raise ValueError(f"{name} needs kind=bradley_terry: kind=pointwise has no pairs.")

    @property
    def whole_groups(self) -> bool:
        """Whether a group's rows must never be divided."""
        return self.kind == "bradley_terry"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"margins"} if self.margins else ())

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        score_BT = batch.scores["sequence_score"]  # the same on all tokens of a row
        if self.kind == "pointwise":
            sign_B1 = jnp.sign(sequence_sum(batch.advantages_BT, batch))
            loss_BT = jnp.where(sign_B1 == 0, 0.0, -jax.nn.log_sigmoid(sign_B1 * score_BT))
            return loss_BT, {"score": score_BT, "label_accuracy": sign_B1 * score_BT > 0}
        pairs, score_B1 = GroupPairs.of(batch), score_BT[:, :1]
        margin_BB = pairs.margins(score_B1)
        least_B1 = batch.scores["margins"][:, None] if self.margins else 0.0
        loss_BB = -jax.nn.log_sigmoid(margin_BB - least_B1)
        loss_BB += self.center * jnp.square(score_B1 + score_B1.T)
        metrics = {"score": score_BT} | pairs.metrics(margin_BB, logprobs_BT)
        return pairs.mean(loss_BB, logprobs_BT), metrics
