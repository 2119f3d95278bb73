"""Direct Preference Optimization, IPO, SimPO and ORPO."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, TrainingBatch
from rl4p.configuration.bounds import AboveZero, NonNegative, Share
from rl4p.learner.preferences import GroupPairs
from rl4p.learner.ratio import sequence_lengths, sequence_sum
from rl4p.learner.update_options import Aggregation, UpdateOptions

WITHOUT_REFERENCE = ("simpo", "orpo")


@dataclass(frozen=True, kw_only=True)
class DPO(UpdateOptions):
    """Preference losses between samples of one prompt. With the score of a sequence

        s = log pi(y) - log pi_reference(y)          dpo, ipo
        s = (1/l) log pi(y)                          simpo
        s = log (p / (1 - p)), p = pi(y)^(1/l)       orpo

    and h = s_chosen - s_rejected, the loss of a pair is

        dpo (2305.18290)     -(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h)
        ipo (2310.12036)     (h - 1 / (2 beta))^2
        simpo (2405.14734)   the loss of dpo, with beta h - gamma instead of beta h
        orpo (2403.07691)    -log p_chosen - beta log sigmoid(h)

    where e is the label smoothing of cDPO, and beta of orpo is the paper's lambda. Within a group
    (found by its id), each sample with A > 0 is chosen against each sample with A < 0. Samples with
    A = 0 and rows without loss tokens are in no pair. The loss of a sample is the mean over its
    pairs, on each of its tokens. Therefore `sequence_mean_token_mean`, the default here, gives the
    mean of the pairs' losses if groups are pairs, as in the papers. With larger groups, it gives a
    mean over groups of the mean over their pairs. The weight of a group is its number of rows in
    pairs; rows in no pair add a loss of 0.

    The likelihood term of orpo is that of the response alone, as in the paper; TRL adds the prompt.
    A mean log-probability above -1e-6, whose odds are infinite in float32, counts as -1e-6.

    Attributes:
      kind: the loss.
      beta: 0.1 in DPO, IPO and ORPO; SimPO uses 2 and more.
      label_smoothing: e, for dpo and simpo.
      gamma: SimPO's target margin, subtracted from beta h.
      length_normalised: whether dpo and ipo use the mean over tokens (TRL's ipo); simpo and orpo
        always do.
    """

    whole_groups: ClassVar[bool] = True  # a group's rows must never be divided
    reads_signs: ClassVar[bool] = True

    kind: Literal["dpo", "ipo", "simpo", "orpo"] = "dpo"
    beta: AboveZero = 0.1
    label_smoothing: Share = 0.0
    gamma: NonNegative = 0.5
    length_normalised: bool = False
    aggregation: Aggregation = "sequence_mean_token_mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind in ("ipo", "orpo") and self.label_smoothing:
            raise ValueError(f"label_smoothing needs kind=dpo or kind=simpo, not kind={self.kind}.")
        if self.kind != "simpo" and self.gamma != type(self).gamma:
            raise ValueError(f"gamma={self.gamma} is the margin of kind=simpo: leave it out.")
        if self.kind in WITHOUT_REFERENCE and self.length_normalised:
            raise ValueError(
                f"kind={self.kind} always normalises by length: leave length_normalised out."
            )

    @property
    def needs(self) -> frozenset[str]:
        own = set() if self.kind in WITHOUT_REFERENCE else {"reference_logprobs"}
        return super().needs | own

    def __call__(self, logprobs_BT: Array, batch: TrainingBatch) -> tuple[Array, dict[str, Array]]:
        if self.kind not in WITHOUT_REFERENCE:
            logprobs_BT = logprobs_BT - batch.scores["reference_logprobs"]
        score_B1 = sequence_sum(logprobs_BT, batch)
        if self.kind in WITHOUT_REFERENCE or self.length_normalised:
            score_B1 = score_B1 / sequence_lengths(batch, score_B1)

        pairs = GroupPairs.of(batch)
        if self.kind == "orpo":
            margin_BB = pairs.margins(log_odds(score_B1))
            loss_BB = -pairs.of_chosen(score_B1) - self.beta * jax.nn.log_sigmoid(margin_BB)
            return pairs.mean(loss_BB, logprobs_BT), pairs.metrics(margin_BB, logprobs_BT)
        margin_BB = pairs.margins(score_B1)
        if self.kind == "ipo":
            loss_BB = jnp.square(margin_BB - 1 / (2 * self.beta))
        else:
            logit = self.beta * margin_BB - (self.gamma if self.kind == "simpo" else 0.0)
            right, wrong = jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit)
            loss_BB = -(1 - self.label_smoothing) * right - self.label_smoothing * wrong
        return pairs.mean(loss_BB, logprobs_BT), pairs.metrics(margin_BB, logprobs_BT)


def log_odds(logprob: Array) -> Array:
    """Returns log(p / (1 - p)) of log p, which is at most -1e-6 here."""
    # At 0, as of a row without tokens, the odds are infinite, and a masked gradient would be nan.
    logprob = jnp.minimum(logprob, -1e-6)
    return logprob - jnp.log(-jnp.expm1(logprob))
