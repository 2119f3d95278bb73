"""The programs that fill, resize and clear the cache."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.cache import Cache
from rl4p.rollout.engine import cache as programs


@pytest.fixture(scope="module")
def sampled(policy, params):
    return policy.for_sampling(params)


@pytest.fixture
def prefilled(policy, sampled):
    """Contexts of 3 and 5 tokens in 16 columns, of which the first 0 and 11 are unused."""
    tokens = np.random.default_rng(0).integers(0, 256, (2, 16)).astype(np.int32)
    arrays = tokens, np.int32([0, 11]), np.int32([3, 5])
    return programs.prefill(policy.decoder, sampled, *arrays, policy.mesh)


def rows(cache, *numbers):
    return jax.tree.map(lambda x: np.asarray(x)[list(numbers)], cache)


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_prefill_writes_the_columns_of_its_context(prefilled):
    segments_BS = np.asarray(prefilled.segment_ids_BS)
    assert segments_BS[0].tolist() == [1] * 3 + [0] * 13
    assert segments_BS[1].tolist() == [0] * 11 + [1] * 5
    assert np.asarray(prefilled.positions_BS)[1, 11:].tolist() == [0, 1, 2, 3, 4]


def test_contexts_are_placed_in_slots_and_other_slots_stay(policy, prefilled):
    cache = programs.place(None, prefilled, np.int32([1, 0, 1]), 24, policy.mesh)
    assert cache.positions_BS.shape == (3, 24)
    full = Cache(
        layers=cache.layers,
        positions_BS=cache.positions_BS,
        segment_ids_BS=jnp.ones_like(cache.segment_ids_BS),
    )
    before = rows(full, 0, 1, 2)
    placed = programs.place(full, prefilled, np.int32([-1, -1, 0]), 24, policy.mesh)
    assert_equal(rows(placed, 0, 1), jax.tree.map(lambda x: x[:2], before))
    assert_equal(rows(placed.rows(np.int32([2]), 16), 0), rows(prefilled, 0))
    assert not np.asarray(placed.segment_ids_BS)[2, 16:].any()  # of the former sequence


def test_a_cache_is_resized_with_its_rows(policy, prefilled):
    wide = programs.resized(prefilled, np.int32([1, 0, 0]), 20, policy.mesh)
    assert wide.positions_BS.shape == (3, 20)
    assert not np.asarray(wide.segment_ids_BS)[:, 16:].any()
    narrow = programs.resized(wide, np.int32([1, 0]), 16, policy.mesh)
    assert_equal(rows(narrow, 0, 1), rows(prefilled, 0, 1))


def test_cleared_rows_are_zero_and_others_stay(prefilled):
    before = rows(prefilled, 0, 1)
    cleared = rows(programs.cleared(prefilled, np.array([True, False])), 0, 1)
    assert not any(x[0].any() for x in jax.tree.leaves(cleared))
    assert_equal(rows(cleared, 1), rows(before, 1))


def test_the_row_of_a_slot_is_taken(policy, prefilled):
    columns = prefilled.positions_BS.shape[1]
    row = programs.row_of(prefilled, np.int32(1), columns, policy.mesh)
    assert_equal(rows(row, 0), rows(prefilled, 1))
