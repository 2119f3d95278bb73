"""Direct Preference Optimization, IPO and SimPO."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import AboveZero, NonNegative, Share
from rl4p.learner.ratio import sequence_lengths, sequence_sum
from rl4p.learner.update_options import Aggregation, UpdateOptions


@dataclass(frozen=True, kw_only=True)
class DPO(UpdateOptions):
    """Preference losses between samples of one prompt. With the score of a sequence

        s = log pi(y) - log pi_reference(y)          dpo, ipo
        s = (1/l) log pi(y)                          simpo

    and h = s_chosen - s_rejected, the loss of a pair is

        dpo (2305.18290)     -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)
        ipo (2310.12036)     (h - 1 / (2 beta))^2
        simpo (2405.14734)   the loss of dpo, with beta h - gamma instead of beta h

    where e is the label smoothing of cDPO. Within a group (found by its id), each sample with A > 0
    is chosen against each sample with A < 0. Samples with A = 0 and rows without loss tokens are in
    no pair. The loss of a sample is the mean over its pairs, on each of its tokens. Therefore
    `sequence_mean_token_mean`, the default here, gives the mean of the pairs' losses if groups are
    pairs, as in the papers. With larger groups, it gives a mean over groups of the mean over their
    pairs. The weight of a group is its number of rows in pairs; rows in no pair add a loss of 0.

    Attributes:
      kind: the loss.
      beta: 0.1 in DPO and IPO; SimPO uses 2 and more.
      label_smoothing: e, for dpo and simpo.
      gamma: SimPO's target margin, subtracted from beta h.
      length_normalised: whether dpo and ipo use the mean over tokens (TRL's ipo); simpo always
        does.
    """

    whole_groups: ClassVar[bool] = True  # a group's rows must never be divided

    kind: Literal["dpo", "ipo", "simpo"] = "dpo"
    beta: AboveZero = 0.1
    label_smoothing: Share = 0.0
    gamma: NonNegative = 0.5
    length_normalised: bool = False
    aggregation: Aggregation = "sequence_mean_token_mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "ipo" and self.label_smoothing:
            raise ValueError("label_smoothing needs kind=dpo or kind=simpo, not kind=ipo.")
        if self.kind != "simpo" and self.gamma != type(self).gamma:
            raise ValueError(f"gamma={self.gamma} is the margin of kind=simpo: leave it out.")
        if self.kind == "simpo" and self.length_normalised:
            raise ValueError("kind=simpo always normalises by length: leave length_normalised out.")

    @property
    def needs(self) -> frozenset[str]:
        return super().needs | (set() if self.kind == "simpo" else {"reference_logprobs"})

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        if self.kind != "simpo":
            logprobs_BT = logprobs_BT - batch.scores["reference_logprobs"]
        score_B1 = sequence_sum(logprobs_BT, batch)
        if self.kind == "simpo" or self.length_normalised:
            score_B1 = score_B1 / sequence_lengths(batch, score_B1)

        sign_B1 = jnp.sign(sequence_sum(batch.advantages_BT, batch))
        groups_B = batch.trajectories.group_ids_B
        # +1 if row b is chosen and row c of its group is rejected, -1 for the reverse.
        same_BB = groups_B[:, None] == groups_B[None, :]
        pair_BB = jnp.where(same_BB & (sign_B1 * sign_B1.T < 0), sign_B1, 0.0)
        margin_BB = jnp.where(pair_BB != 0, pair_BB * (score_B1 - score_B1.T), 0.0)
        pairs_B1 = jnp.sum(jnp.abs(pair_BB), axis=1, keepdims=True)

        def over_pairs(x_BB: Array) -> Array:
            total_B1 = jnp.sum(jnp.where(pair_BB != 0, x_BB, 0.0), axis=1, keepdims=True)
            return jnp.broadcast_to(total_B1 / jnp.maximum(pairs_B1, 1), logprobs_BT.shape)

        if self.kind == "ipo":
            loss_BB = jnp.square(margin_BB - 1 / (2 * self.beta))
        else:
            logit = self.beta * margin_BB - (self.gamma if self.kind == "simpo" else 0.0)
            right, wrong = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)
            loss_BB = -(1 - self.label_smoothing) * right - self.label_smoothing * wrong
        return over_pairs(loss_BB), {
            "preference_margin": over_pairs(margin_BB),
            "preference_accuracy": over_pairs((margin_BB > 0).astype(margin_BB.dtype)),
        }
