"""The kernel that writes a column to each row; here it is interpreted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.distributed.mesh import ONE_DEVICE
from rl4p.model.cache import (
    Cache,
    KeysValues,
    Prefix,
    QuantizedKeysValues,
    of_device,
    write,
    write_columns,
)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize(("h", "S"), [(64, 96), (128, 160), (128, 384), (8, 16)])
@pytest.mark.parametrize("axis", [2, 3])
def test_the_kernel_writes_what_the_compiler_writes(axis, h, S, dtype):
    B, K = 5, 2
    random = np.random.default_rng(0)
    shapes = [[B, K, h, h], [B, K, h, h]]
    for shape, slots in zip(shapes, (S, 1), strict=True):
        shape[axis] = slots
    cache, new = (jnp.asarray(50 * random.normal(size=x), dtype) for x in shapes)
    slot_B = np.int32([0, S - 1, 15, S // 2, 1])
    expected = write(cache, new, slot_B, axis)
    written = of_device(cache, new, slot_B, axis=axis, interpret=True)
    np.testing.assert_array_equal(np.float32(written), np.float32(expected))
    assert not np.array_equal(np.float32(written), np.float32(cache))


def test_numbers_are_selected_and_slots_are_clipped():
    cache, new = np.zeros((3, 4), np.int32), np.int32([[7], [8], [9]])
    written = write_columns(cache, new, jnp.int32([3, 0, 5]), 1, ONE_DEVICE)
    np.testing.assert_array_equal(written, [[0, 0, 0, 7], [8, 0, 0, 0], [0, 0, 0, 9]])
    expected = write(cache, new, jnp.int32([3, 0, 5]), axis=1)
    np.testing.assert_array_equal(written, expected)


def test_the_kernel_writes_latents_which_have_no_heads():
    random = np.random.default_rng(0)
    cache, new = (jnp.asarray(random.normal(size=(3, slots, 8))) for slots in (16, 1))
    slot_B = np.int32([0, 15, 7])
    written = write_columns(cache, new, slot_B, 1, ONE_DEVICE, interpret=True)
    np.testing.assert_array_equal(written, write(cache, new, slot_B, 1))


def test_the_kernel_runs_within_a_program():
    cache = jnp.zeros((2, 1, 8, 16))
    new = jnp.ones((2, 1, 8, 1))

    @jax.jit
    def twice(cache, slot_B):
        cache = write_columns(cache, new, slot_B, 3, ONE_DEVICE, interpret=True)
        return write_columns(cache, 2 * new, slot_B + 1, 3, ONE_DEVICE, interpret=True)

    written = np.asarray(twice(cache, jnp.int32([1, 4])))
    assert written[0, 0, 0].tolist() == [0, 1, 2] + [0] * 13
    assert written[1, 0, 7].tolist() == [0] * 4 + [1, 2] + [0] * 10


def test_scales_are_written_as_keys_are():
    """A scale is a key of width 1."""
    random = np.random.default_rng(0)
    cache, new = (jnp.asarray(random.normal(size=(3, 2, 1, n)), "bfloat16") for n in (160, 1))
    slot_B = np.int32([0, 159, 130])
    written = of_device(cache, new, slot_B, axis=3, interpret=True)
    np.testing.assert_array_equal(np.float32(written), np.float32(write(cache, new, slot_B, 3)))


def test_keys_and_values_are_rounded_by_the_largest_of_their_token_and_head():
    """Two tokens of one head of width three; the second has no value but 0."""
    keys = jnp.asarray([[1.0, 0.0], [-2.54, 0.0], [0.03, 0.0]])[None, None]
    values = jnp.asarray([[127.0, 0.4, -63.6], [0.0, 0.0, 0.0]])[None, None]
    found = QuantizedKeysValues.of(keys, values, "float32")
    np.testing.assert_allclose(found.key_scales_BK1S, [[[[0.02, 0.0]]]], rtol=1e-6)
    np.testing.assert_array_equal(found.keys_BKhS, [[[[50, 0], [-127, 0], [2, 0]]]])
    np.testing.assert_array_equal(found.value_scales_BK1S, [[[[1.0, 0.0]]]])
    np.testing.assert_array_equal(found.values_BKSh, [[[[127, 0, -64], [0, 0, 0]]]])
    assert {x.dtype.name for x in found[:2]} == {"int8"}


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_rounded_scale_adds_no_error(dtype):
    """An error is at most half a scale; a largest number above 127 scales is cut to it."""
    keys = jnp.asarray(np.random.default_rng(0).normal(size=(3, 2, 64, 50)), jnp.float32)
    found = QuantizedKeysValues.of(keys, keys.swapaxes(2, 3), dtype)
    scales = np.float32(found.key_scales_BK1S)
    np.testing.assert_array_equal(scales, np.float32(found.value_scales_BK1S))
    error = np.abs(np.float32(found.keys_BKhS) * scales - keys)
    assert (error <= (0.5 if dtype == "float32" else 0.75) * scales * 1.001).all()
    assert error.mean() < 0.26 * scales.mean()


def test_what_is_no_number_stays_none():
    keys = jnp.asarray([np.nan, 1.0])[None, None, :, None]
    found = QuantizedKeysValues.of(keys, keys.swapaxes(2, 3), "float32")
    assert np.isnan(found.key_scales_BK1S).all()
    assert np.isnan(found.value_scales_BK1S).all()


@pytest.fixture
def cache():
    """Returns a cache of two layers, three rows, one head of width two and four slots."""

    def numbers(*shape, start):
        return jnp.arange(start, start + np.prod(shape), dtype=jnp.int32).reshape(shape)

    return Cache(
        layers=tuple(
            KeysValues(numbers(3, 1, 2, 4, start=i), numbers(3, 1, 4, 2, start=i + 50))
            for i in (100, 200)
        ),
        positions_BS=numbers(3, 4, start=300),
        segment_ids_BS=numbers(3, 4, start=400),
    )


@pytest.mark.parametrize("slots", [4, 6])
def test_rows_are_taken_whole_and_grow_behind(cache, slots):
    rows = np.array([2, 0, 2, 1])
    taken = cache.rows(rows, slots)
    more = slots - 4
    for (k, v), (old_k, old_v) in zip(taken.layers, cache.layers, strict=True):
        np.testing.assert_array_equal(
            k, np.pad(np.asarray(old_k)[rows], [(0, 0)] * 3 + [(0, more)])
        )
        np.testing.assert_array_equal(
            v, np.pad(np.asarray(old_v)[rows], [(0, 0)] * 2 + [(0, more), (0, 0)])
        )
    for ours, old in (
        (taken.positions_BS, cache.positions_BS),
        (taken.segment_ids_BS, cache.segment_ids_BS),
    ):
        np.testing.assert_array_equal(ours, np.pad(np.asarray(old)[rows], [(0, 0), (0, more)]))


def test_new_slots_are_written_from_one_place_on_in_all_rows():
    old, new = np.zeros((2, 5), np.int32), np.int32([[1, 2], [3, 4]])
    np.testing.assert_array_equal(write(old, new, 2, axis=1), [[0, 0, 1, 2, 0], [0, 0, 3, 4, 0]])
    np.testing.assert_array_equal(
        write(old, new, jnp.int32(0), axis=1), [[1, 2, 0, 0, 0], [3, 4, 0, 0, 0]]
    )


@pytest.mark.parametrize("axis", [2, 3])
def test_each_row_may_have_a_place_of_its_own(axis):
    old = np.zeros((2, 1, 4, 4), np.float32)
    new = np.ones([4 if i not in (0, 1, axis) else (2, 1)[i] if i < 2 else 1 for i in range(4)])
    new = new.astype(np.float32) * np.float32([5, 7]).reshape(2, 1, 1, 1)
    written = np.moveaxis(np.asarray(write(old, new, jnp.array([3, 1]), axis=axis)), axis, -1)
    np.testing.assert_array_equal(written[0], np.broadcast_to([0, 0, 0, 5], (1, 4, 4)))
    np.testing.assert_array_equal(written[1], np.broadcast_to([0, 7, 0, 0], (1, 4, 4)))


def test_what_rows_begin_with_stands_at_the_first_positions():
    before = Prefix((), np.int32([[1, 1, 0], [1, 0, 0]]))
    np.testing.assert_array_equal(before.positions_BS, [[0, 1, 2], [0, 1, 2]])
    assert before.positions_BS.dtype == jnp.int32


def test_a_cache_is_a_tree_of_arrays(cache):
    assert len(jax.tree.leaves(cache)) == 2 * 2 + 2
