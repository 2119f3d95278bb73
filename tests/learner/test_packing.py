"""Tests that packed sequences do not see one another, and that packing changes no gradient."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl4p.learner.gradient_step import gradient_step
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.learner.microbatches import extents
from rl4p.learner.packing import packed
from rl4p.types import Microbatching, Sampling, TrainingBatch
from rl4p.update.sft import SFT

B, T = 8, 16
SAMPLING = Sampling()
# Columns of prompt and response: 16, 8, 3, 13, 2, 15, 6 and 12 tokens.
PROMPTS, RESPONSES = (8, 5, 3, 8, 1, 7, 4, 6), (8, 3, 0, 5, 1, 8, 2, 6)


@pytest.fixture(scope="module")
def trajectories(make_trajectories):
    """Rows with gaps in their masks, as conversations have."""
    whole = make_trajectories(RESPONSES, PROMPTS)
    gap = (np.arange(T) == 9)[None]
    return replace(whole, response_mask_BT=whole.response_mask_BT & ~gap)


@pytest.fixture(scope="module")
def pack():
    """Returns a function that packs trajectories, with segment ids of their own."""

    def pack(trajectories):
        moved, segments_BT = jax.jit(packed)(trajectories, trajectories.segment_ids_BT)
        return replace(moved, segment_ids_BT=segments_BT)

    return pack


def sequences(trajectories):
    """Returns the tokens, positions and masks of each segment, sorted."""
    found = []
    fields = ("segment_ids_BT", "tokens_BT", "positions_BT", "response_mask_BT")
    for row in zip(*(np.asarray(getattr(trajectories, name)) for name in fields), strict=True):
        for segment in np.unique(row[0][row[0] > 0]):
            here = row[0] == segment
            assert np.ptp(np.flatnonzero(here)) == here.sum() - 1  # neighbouring columns
            found.append([x[here].tolist() for x in row[1:]])
    return sorted(found)


def test_every_sequence_is_moved_whole_into_the_first_row_with_room(trajectories, pack):
    moved = pack(trajectories)
    assert sequences(moved) == sequences(trajectories)
    left, lengths = map(np.asarray, extents(moved.segment_ids_BT))
    # 16; 15; 13 + 3; 12 + 2; 8 + 6: the longest first, each into the first row that has room.
    assert lengths.tolist() == [16, 15, 16, 14, 14, 0, 0, 0]
    assert not left.any()
    counts = [len(np.unique(row[row > 0])) for row in np.asarray(moved.segment_ids_BT)]
    assert counts == [1, 1, 2, 2, 2, 0, 0, 0]
    assert (np.asarray(moved.positions_BT) >= 0).all()


def test_values_of_rows_stay_as_they_are():
    segments_BT = jnp.ones((2, 3), jnp.int32)
    values_B, _ = packed(jnp.arange(2), segments_BT)
    assert values_B.tolist() == [0, 1]


def test_no_sequence_sees_its_neighbours(policy, params, trajectories, pack):
    """Log-probabilities of packed tokens are those of each sequence alone."""
    options = ScoreOptions(
        decoder=policy.decoder, sampling=SAMPLING, microbatching=Microbatching(tokens=B * T)
    )
    score = partial(score_tokens, options, params)
    alone = score(trajectories)["logprobs"]
    mask_BT = np.asarray(trajectories.response_mask_BT)
    moved = pack(trajectories)
    together = score(moved)["logprobs"]
    expected, _ = packed(alone, trajectories.segment_ids_BT)
    assert np.abs(np.asarray(alone)[mask_BT]).min() > 0
    np.testing.assert_allclose(together, expected, rtol=1e-5, atol=1e-5)
    joined = replace(moved, segment_ids_BT=jnp.minimum(moved.segment_ids_BT, 1))
    assert np.abs(score(joined)["logprobs"] - together).max() > 1e-3  # the test can fail


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Keeps the gradient as its state and moves nothing."""

    def transform(self):
        return optax.GradientTransformation(
            lambda params: jax.tree.map(jnp.zeros_like, params),
            lambda gradient, state, params=None: (gradient, gradient),
        )

    def learning_rate_at(self, step):
        return jnp.float32(0.0)


@pytest.fixture(scope="module")
def gradient(policy, params, make_state, make_objective, trajectories):
    def gradient(**options):
        batch = TrainingBatch(
            trajectories=trajectories,
            advantages_BT=jnp.where(trajectories.response_mask_BT, jnp.float32(1), 0),
            loss_mask_BT=trajectories.response_mask_BT,
            scores={},
        )
        optimizer = Gradient()
        state, metrics = gradient_step(
            make_objective(SFT(tokens_per_microbatch=3 * T, **options), sampling=SAMPLING),
            optimizer,
            {},
            make_state(params, optimizer),
            batch,
            {"kl": jnp.float32(0), "entropy": jnp.float32(0)},
        )
        return jax.device_get((state.optimizer_state, metrics))

    return gradient


@pytest.mark.parametrize(
    "aggregation", ["token_mean", pytest.param("sequence_mean_token_mean", marks=pytest.mark.slow)]
)
def test_the_loss_and_its_gradient_are_those_of_rows_that_are_not_packed(gradient, aggregation):
    (alone, metrics), (together, of_packed) = (
        gradient(aggregation=aggregation, pack=pack) for pack in (False, True)
    )
    assert metrics["update/grad_norm"] > 0
    for name, value in metrics.items():
        np.testing.assert_allclose(of_packed[name], value, rtol=1e-5, atol=1e-6, err_msg=name)
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5 * np.abs(a).max())
