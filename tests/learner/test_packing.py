"""Tests that packed sequences do not see one another, and that packing changes no gradient."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl4p.base.types import Microbatching, Sampling, TrainingBatch
from rl4p.learner.gradient_step import gradient_step
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.learner.microbatches import MicrobatchRows, cost_of, extents, loops
from rl4p.learner.packing import Packing, packed
from rl4p.model.attention import MOST_SEQUENCES
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


@pytest.mark.slow
def test_values_of_rows_stay_as_they_are():
    segments_BT = jnp.ones((2, 3), jnp.int32)
    values_B, _ = packed(jnp.arange(2), segments_BT)
    assert values_B.tolist() == [0, 1]


@pytest.mark.slow
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


@pytest.mark.slow
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


MANY = 1e9  # keys that cost as much as the products: attention is free


def of_groups(lengths, group_size, columns, tokens, *, most=8, equal=MANY):
    """Returns the packing of rows of these lengths, and the loops over the packed rows."""
    lengths = np.asarray(lengths)
    segments_BT = (np.arange(columns) < lengths[:, None]).astype(np.int32)
    microbatching = Microbatching(tokens=tokens, widths=most)
    of_packed = loops(len(lengths), columns, microbatching, packed=True)

    def cost(width):
        return width * (1 + width / (2 * equal))

    found = Packing.of_groups(jnp.asarray(segments_BT), group_size, of_packed, cost)
    return jax.tree.map(np.asarray, found), of_packed


def used_of(packing):
    used_B = np.zeros(len(packing.rows_B), np.int32)
    np.add.at(used_B, packing.rows_B, packing.lengths_B)
    return used_B


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_the_sequences_of_a_group_share_its_rows_without_overlap(seed):
    random = np.random.default_rng(seed)
    lengths = random.integers(0, 257, 24)
    packing, _ = of_groups(lengths, 6, 256, 300, equal=random.choice([100, 1000, MANY]))
    np.testing.assert_array_equal(packing.lengths_B, lengths)
    np.testing.assert_array_equal(packing.rows_B // 6, np.arange(24) // 6)
    count_BT = np.zeros((24, 256), int)
    for row, start, length in zip(packing.rows_B, packing.starts_B, lengths, strict=True):
        count_BT[row, start : start + length] += 1
    assert count_BT.max() == 1
    assert count_BT.sum() == lengths.sum()
    assert (used_of(packing) > 0).sum() < (lengths > 0).sum()


@pytest.mark.slow
def test_later_segments_have_ids_below_0(make_trajectories):
    """So they do not see the prompt before the first; all ids differ between sequences."""
    trajectories = make_trajectories((8, 3, 5, 4), (8, 8, 8, 8))
    segments_BT = np.array(trajectories.segment_ids_BT)
    segments_BT[0, 12:] = 2
    segments_BT[2, 9:13] = [2, 2, 3, 3]
    trajectories = jax.tree.map(jnp.asarray, replace(trajectories, segment_ids_BT=segments_BT))
    rows = jax.tree.map(lambda x: x if x.ndim == 1 else x[:, 7:], trajectories)
    segments_BT = segments_BT[:, 7:]
    packing, _ = of_groups((segments_BT > 0).sum(axis=1), 4, 9, 9)
    assert packing.rows_B.tolist() == [0, 2, 1, 2]
    found = np.asarray(packing.pack_trajectories(rows).segment_ids_BT)
    np.testing.assert_array_equal(found[0], np.where(segments_BT[0] == 2, -2, 1))
    assert (np.unique(found[1]) < 0).sum() == 2
    assert (found[2] > 0).sum() == 9
    assert len(np.unique(found[2])) == 2
    assert len(np.unique(np.abs(found))) == 1 + 2 + 2 + 3  # padding, and the segments of the rows


def test_what_is_packed_is_unpacked():
    lengths = np.array([9, 4, 0, 3, 16, 5, 1, 8])
    packing, _ = of_groups(lengths, 4, 16, 16)
    left_B = np.array([3, 12, 5, 0, 0, 2, 15, 8])
    packing = packing._replace(left_B=left_B)
    places = np.arange(16) - left_B[:, None]
    inside = (places >= 0) & (places < lengths[:, None])
    x_BT = np.random.default_rng(0).normal(size=(8, 16))
    moved = packing.pack(jnp.asarray(x_BT))
    assert np.count_nonzero(moved) == lengths.sum()
    assert np.abs(moved - np.where(inside, x_BT, 0)).max() > 0
    np.testing.assert_allclose(packing.unpack(moved), np.where(inside, x_BT, 0), rtol=1e-6)


@pytest.mark.slow
def test_the_rows_of_a_microbatch_have_the_sequences_of_their_groups():
    """Group 0 has sequences 0 to 3 in rows 0 and 1; group 1 has 4 to 7 in rows 4 and 5."""
    lengths = np.array([9, 4, 0, 3, 16, 5, 1, 8])
    packing, _ = of_groups(lengths, 4, 16, 16)
    assert packing.rows_B.tolist() == [0, 0, 0, 0, 4, 5, 5, 5]
    assert packing.starts_B.tolist()[4:] == [0, 8, 13, 0]
    at = MicrobatchRows(jnp.array([5, 0, 8]), jnp.zeros(3, jnp.int32))  # 8 is none
    own, places = packing.of_microbatch(at, 4)
    assert own.rows_b.tolist() == [7, 5, 6, 8, 0, 1, 3, 2, 8, 8, 8, 8]
    assert places.rows_B.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    x_BT = np.arange(1.0, 129, dtype=np.float32).reshape(8, 16)
    expected = np.zeros((12, 16), np.float32)
    for n, sequence in enumerate(own.rows_b.tolist()):
        if sequence < 8:
            expected[n, : lengths[sequence]] = x_BT[sequence, : lengths[sequence]]
    rows = at.take(packing.pack(jnp.asarray(x_BT)), 16)
    np.testing.assert_array_equal(places.unpack(rows), expected)
    here = np.arange(16) < np.asarray(places.lengths_B)[:, None]
    np.testing.assert_array_equal(np.where(here, own.take(x_BT, 16), 0), expected)


@pytest.mark.slow
def test_responses_of_one_length_have_rows_of_their_own():
    packing, _ = of_groups([100] * 8, 4, 100, 1000)
    np.testing.assert_array_equal(packing.rows_B, np.arange(8))


@pytest.mark.slow
def test_a_row_has_a_few_sequences():
    """So that the loss, which has a row for each that may be there, stays small."""
    packing, _ = of_groups([3] * 24, 24, 100, 100)
    counts = np.unique(packing.rows_B, return_counts=True)[1]
    assert counts.tolist() == [MOST_SEQUENCES] * 3
    assert packing.numbers_B.tolist() == [*range(MOST_SEQUENCES)] * 3


@pytest.mark.slow
def test_rows_are_short_where_attention_costs_much():
    """One response of 500 tokens and seven of 54, in a row of 378 or in shorter ones."""
    lengths = [500, 54, 54, 54, 54, 54, 54, 54]
    cheap, _ = of_groups(lengths, 8, 512, 1024)
    dear, _ = of_groups(lengths, 8, 512, 1024, equal=10)
    assert sorted(used_of(cheap))[-2:] == [378, 500]
    assert sorted(used_of(dear))[-2] <= 288
    assert max(used_of(dear)) == 500


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "tokens", "padding", "before"),
    [(256, 384, 1.1, 1.3), (256, 2048, 1.15, 1.6), (2048, 20480, 1.18, 2.0)],
)
def test_few_columns_are_padding(limit, tokens, padding, before):
    """A response ends with probability 4 / limit at each token; a device has 8 groups of 8."""
    random = np.random.default_rng(0)
    ours, theirs = [], []
    for _ in range(8):
        lengths = 1 + np.minimum(random.geometric(4 / limit, 64), limit)
        packing, of_packed = of_groups(lengths, 8, limit + 1, tokens, equal=4.4 * limit)
        ours.append(float(cost_of(used_of(packing), of_packed, float)) / lengths.sum())
        alone = loops(64, limit + 1, Microbatching(tokens=tokens))
        theirs.append(float(cost_of(lengths, alone, float)) / lengths.sum())
    assert 1 < np.mean(ours) < padding
    assert np.mean(theirs) > before
