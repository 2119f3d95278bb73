"""What preference losses compare: good samples with bad ones, and responses with other prompts."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Params, TrainingBatch, Trajectories
from rl4p.distributed.processes import to_host
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.learner.ratio import sequence_sum
from rl4p.model.decoder import Decoder


class GroupPairs(NamedTuple):
    """Each sample with A > 0 beside each sample with A < 0 of its group, which its id names.

    Samples with A = 0 and rows without loss tokens are in no pair.

    Attributes:
      sign_BB: +1 if row b is chosen and row c is rejected, -1 for the reverse, 0 for no pair.
    """

    sign_BB: Array

    @classmethod
    def of(cls, batch: TrainingBatch) -> "GroupPairs":
        """Returns the pairs of a batch, whose advantages have one sign in a row."""
        sign_B1 = jnp.sign(sequence_sum(batch.advantages_BT, batch))
        groups_B = batch.trajectories.group_ids_B
        same_BB = groups_B[:, None] == groups_B[None, :]
        return cls(jnp.where(same_BB & (sign_B1 * sign_B1.T < 0), sign_B1, 0.0))

    def margins(self, score_B1: Array) -> Array:
        """Returns the score of the chosen row minus that of the rejected one: [B, B]."""
        return jnp.where(self.sign_BB != 0, self.sign_BB * (score_B1 - score_B1.T), 0.0)

    def of_chosen(self, score_B1: Array) -> Array:
        """Returns the score of the chosen row of each pair: [B, B]."""
        return jnp.where(self.sign_BB > 0, score_B1, score_B1.T)

    def mean(self, values_BB: Array, like_BT: Array) -> Array:
        """Returns the mean over the pairs of each row, on each of its tokens: [B, T]."""
        pairs_B1 = jnp.sum(jnp.abs(self.sign_BB), axis=1, keepdims=True)
        total_B1 = jnp.sum(jnp.where(self.sign_BB != 0, values_BB, 0.0), axis=1, keepdims=True)
        return jnp.broadcast_to(total_B1 / jnp.maximum(pairs_B1, 1), like_BT.shape)

    def metrics(self, margin_BB: Array, like_BT: Array) -> dict[str, Array]:
        """Returns the margin, and whether it is above 0, as means over the pairs of each row."""
        return {
            "preference_margin": self.mean(margin_BB, like_BT),
            "preference_accuracy": self.mean((margin_BB > 0).astype(margin_BB.dtype), like_BT),
        }


def mismatched_log_ratios(
    options: ScoreOptions,
    policy: tuple[Decoder, Params],
    reference: tuple[Decoder, Params],
    t: Trajectories,
    temperature: Any = None,
) -> Array:
    """Returns log pi - log pi_reference of the responses to other prompts (`mismatched`).

    Args:
      policy, reference: decoders and their merged parameters.

    Returns:
      float32 [B, T], the same on all columns of a prompt's row.

    Raises:
      InputError: the rows are not prompts with one response each.
    """
    mask_BT = to_host(t.response_mask_BT)
    first_B = np.argmax(mask_BT, axis=1)[mask_BT.any(axis=1)]
    width = first_B.max(initial=0)
    if np.any(first_B != width):
        raise InputError(
            "update=kto gives responses to other prompts, but a row has several turns, or several "
            "trained messages: choose other data or another rollout, or update=dpo."
        )
    own = mismatched(t, width)
    logprobs_BT, base_BT = (
        score_tokens(replace(options, decoder=decoder), params, own, temperature)["logprobs"]
        for decoder, params in (policy, reference)
    )
    ratio_BT = jnp.where(own.response_mask_BT, logprobs_BT - base_BT, 0.0)
    return jnp.broadcast_to(jnp.sum(ratio_BT, axis=1, keepdims=True), ratio_BT.shape)


@jax.jit
def mismatched(t: Trajectories, width: Array) -> Trajectories:
    """Returns the prompts, of `width` columns, with the responses of `group_size` rows before."""
    prompt_T = jnp.arange(t.tokens_BT.shape[1]) < width

    def turned(x_BT: Any) -> Any:
        def roll(x_BT: Array) -> Array:
            here = prompt_T.reshape(-1, *(1,) * (x_BT.ndim - 2))
            return jnp.where(here, x_BT, jnp.roll(x_BT, t.group_size, axis=0))

        return jax.tree.map(roll, x_BT)  # None stays None

    segments_BT = turned(t.segment_ids_BT)
    positions_BT = jnp.cumsum(segments_BT != 0, axis=1, dtype=jnp.int32) - 1
    return replace(
        t,
        tokens_BT=turned(t.tokens_BT),
        response_mask_BT=turned(t.response_mask_BT),
        segment_ids_BT=segments_BT,
        positions_BT=jnp.maximum(positions_BT, 0),
        policy_version_BT=turned(t.policy_version_BT),
        experts_BTX=None,
        alternatives_BTA=turned(t.alternatives_BTA),
        alternative_logprobs_BTA=turned(t.alternative_logprobs_BTA),
    )
