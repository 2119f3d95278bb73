import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import Microbatching
from rl4p.distributed import collectives
from rl4p.learner.microbatches import (
    MicrobatchRows,
    cost_of,
    deal,
    extents,
    fold,
    loops,
    max_iterations,
    rows_in,
    rows_of,
    widths,
)

T = 128


def segments(lengths, left):
    """Rows of so many tokens after so many columns of padding."""
    column = np.arange(T)
    start, length = np.array(left)[:, None], np.array(lengths)[:, None]
    return ((column >= start) & (column < start + length)).astype(np.int32)


@pytest.fixture(scope="module")
def visit():
    """Which tokens a fold sees: their count by place, and the largest microbatch of each width."""

    def run(segment_ids_BT, tokens, together, most_widths=8, packed=False):
        def add(seen, part, rows):
            assert part["segments"].shape == part["place"].shape
            real = part["segments"] > 0
            count_BT = jnp.zeros(segment_ids_BT.shape, jnp.int32)
            moved_BT = rows.put(count_BT, jnp.where(real, part["place"], 0))
            return {
                "count": seen["count"] + rows.put(count_BT, real.astype(jnp.int32)),
                "place": seen["place"] + moved_BT,
                "turns": seen["turns"] + 1,
                "columns": seen["columns"] + part["place"].size,
                "tokens": seen["tokens"] + jnp.sum(real),
            }

        B = segment_ids_BT.shape[0]
        zeros = jnp.zeros(segment_ids_BT.shape, jnp.int32)
        batch = {
            "segments": segment_ids_BT,
            "place": jnp.arange(B * T).reshape(B, T),
        }
        start = {"count": zeros, "place": zeros, "tokens": jnp.int32(0)}
        start |= {"turns": jnp.int32(0), "columns": jnp.int32(0)}
        return fold(
            add,
            start,
            batch,
            segment_ids_BT,
            Microbatching(tokens=tokens, widths=most_widths),
            together=together,
            packed=packed,
        )

    return jax.jit(run, static_argnums=(1, 2, 3, 4))


QUICK = {(1, 1), (100, 3), (200, 2), (1000, 1), (10_000, 3)}  # the other cases are slow tests


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("tokens", "together"),
    [
        pytest.param(
            tokens, together, marks=() if (tokens, together) in QUICK else pytest.mark.slow
        )
        for tokens in (1, 100, 200, 1000, 10_000)
        for together in (1, 2, 3)
    ],
)
def test_every_token_is_seen_once_and_put_back_in_its_place(visit, tokens, together):
    lengths, left = (3, 128, 0, 50, 90, 1, 16, 80, 30, 5, 127, 48), (0, 0, 9, 60, 8, 127, 3, 0) * 2
    ids = segments(lengths, left[:12])
    seen = visit(ids, tokens, together)
    np.testing.assert_array_equal(seen["count"], ids)
    assert seen["tokens"] == ids.sum()  # rows that fill a microbatch up have none
    np.testing.assert_array_equal(seen["place"], np.where(ids, np.arange(12 * T).reshape(12, T), 0))


def test_short_rows_are_in_narrow_microbatches_and_empty_ones_in_none(visit):
    """Of 160 tokens: one row 128 or 96 wide, two rows 64 wide, three rows 48 wide."""
    assert widths(T, 8) == (128, 96, 64, 48)
    lengths = (100, 20, 0, 81, 70, 30, 0, 60, 10, 48)
    seen = visit(segments(lengths, [7] * 10), 160, 1)
    assert int(seen["turns"]) == 5  # 100 | 81 | 70 | 60 and 48 | 30, 20 and 10
    assert int(visit(segments([0] * 10, [7] * 10), 160, 1)["turns"]) == 0


def test_segments_below_0_are_tokens():
    left_B, lengths_B = extents(jnp.array([[0, 1, -2, -3], [-5, 0, 0, 0], [0, 0, 0, 0]]))
    assert lengths_B.tolist() == [3, 1, 0]
    assert left_B.tolist()[:2] == [1, 0]


def test_the_last_packed_rows_have_small_microbatches():
    """Half as many widths, each with a second loop of a quarter of the rows, where there is one."""
    found = [tuple(x) for x in packed_loops(tokens=1024, widths=4)]
    assert found == [(128, 8, 96, 7), (128, 2, 96, 1), (96, 8, 0, 7), (96, 2, 0, 1)]
    found = [(x.width, x.rows) for x in packed_loops(tokens=128, widths=4)]
    assert found == [(128, 1), (96, 1)]
    assert [x.rows for x in packed_loops(tokens=1024, widths=1)] == [8]
    for most in (2, 3):
        assert [x.rows for x in packed_loops(tokens=1024, widths=most)] == [8, 2]
    assert [x.rows for x in packed_loops(tokens=1024, widths=2, together=2)] == [8, 2]
    assert [x.rows for x in packed_loops(tokens=1024, widths=2, together=4)] == [8, 4]


@pytest.mark.parametrize("most", range(1, 10))
def test_packed_rows_have_no_more_loops_than_others(most):
    microbatching = Microbatching(tokens=4096, widths=most)
    assert len(loops(64, 513, microbatching, packed=True)) <= most
    assert len(loops(64, 513, microbatching)) == min(most, 9)


def packed_loops(tokens, widths, together=1):
    return loops(16, T, Microbatching(tokens=tokens, widths=widths), together, packed=True)


@pytest.mark.parametrize("packed", [False, True])
def test_the_cost_of_rows_is_that_of_the_microbatches_that_run(visit, packed):
    random = np.random.default_rng(0)
    for most in (12, 0):
        lengths = random.integers(0, T + 1, 12)
        lengths[:most] = np.minimum(lengths[:most], 90)
        ids = segments(lengths, [0] * 12)
        seen = visit(ids, 512, 1, 4, packed)
        np.testing.assert_array_equal(seen["count"], ids)
        all_loops = loops(12, T, Microbatching(tokens=512, widths=4), packed=packed)
        assert float(cost_of(lengths, all_loops, float)) == int(seen["columns"])


def test_other_lengths_compile_nothing_anew(visit):
    sizes = [visit._cache_size()]
    for lengths in ((5,) * 4, (128,) * 4, (0,) * 4):
        visit(segments(lengths, [0] * 4), 300, 1)
        sizes.append(visit._cache_size())
    assert sizes[1:] == [sizes[0] + 1] * 3


@pytest.mark.parametrize(("most", "turns"), [(1, 8), (2, 8), (3, 6), (4, 5)])
def test_fewer_widths_pad_more(visit, most, turns):
    ids = segments((100, 20, 0, 81, 70, 30, 0, 60, 10, 48), [7] * 10)
    seen = visit(ids, 160, 1, most)
    assert int(seen["turns"]) == turns
    np.testing.assert_array_equal(seen["count"], ids)


def test_devices_that_divide_columns_hold_an_even_share_of_each_row(visit, monkeypatch):
    """Of 5 devices, each holds 26 of 130 columns, and so two rows are at most 60 tokens."""
    ids = segments((128, 100, 80, 40), (0, 3, 9, 70))
    for devices, turns in ((1, 4), (5, 2)):
        monkeypatch.setattr(collectives, "devices", lambda devices=devices: devices)
        seen = visit.__wrapped__(ids, tokens=60, together=1, most_widths=1)
        assert int(seen["turns"]) == turns
        np.testing.assert_array_equal(seen["count"], ids)


@pytest.mark.parametrize("longest", [1, 16, 47, 48, 72, 80, 192, 320, 4096])
@pytest.mark.parametrize("most", [1, 3, 8])
def test_widths_are_few_and_fall(longest, most):
    found = widths(longest, most)
    assert found[0] == longest
    assert len(found) <= most
    least = 48 if longest < 256 else 16
    assert all(a > b >= least and b % 16 == 0 for a, b in itertools.pairwise(found))


def test_each_width_is_about_three_quarters_of_the_one_before():
    assert widths(257, 20) == (257, 192, 144, 112, 80, 64, 48, 32, 16)
    assert widths(255, 20) == (255, 192, 144, 112, 80, 64, 48)
    assert widths(1025, 8) == (1025, 768, 576, 432, 320, 240, 176, 128)
    assert widths(72, 8) == (72, 48)


def test_a_microbatch_has_one_row_or_block_at_least():
    limits = (1, 16, 31, 32, 127, 128)
    assert [rows_in(7 * 8, 16, limit) for limit in limits] == [1, 1, 1, 2, 7, 8]
    assert [rows_in(24, 16, limit, 2) for limit in (1, 63, 64, 96)] == [2, 2, 4, 6]


@pytest.mark.parametrize(
    ("rows", "most", "block", "in_each"),
    [(32, 10, 1, 8), (32, 12, 1, 11), (5, 9, 1, 5), (32, 20, 4, 16), (6, 4, 2, 4), (1, 3, 1, 1)],
)
def test_microbatches_have_similar_numbers_of_rows(rows, most, block, in_each):
    assert rows_in(rows, 16, 16 * most, block) == in_each
    assert -(-rows // in_each) == -(-rows // (most // block * block))  # and are not more


def test_what_fills_a_microbatch_up_is_zero():
    x_BT, x_B = jnp.ones((2, 4)), jnp.ones(2)
    rows = MicrobatchRows(jnp.array([1, 2]), jnp.array([3, 0]))
    np.testing.assert_array_equal(rows.take(x_BT, 3), [[1, 0, 0], [0, 0, 0]])
    np.testing.assert_array_equal(rows.take(x_B, 3), [1, 0])
    np.testing.assert_array_equal(rows.put(x_BT, 5 * jnp.ones((2, 3))), [[1] * 4, [1, 1, 1, 5]])


@pytest.mark.parametrize("together", [1, 2])
def test_devices_are_dealt_rows_to_and_fro_the_longest_first(together):
    lengths = (3, 128, 0, 50, 90, 1, 16, 80, 30, 5)
    rows = np.asarray(deal(segments(lengths, [0] * 10), 4, together)).reshape(4, -1)
    if together == 1:
        assert rows.tolist() == [[1, 0, 5], [4, 9, 2], [7, 6, 10], [3, 8, 10]]  # 10 is none
    else:  # pairs, by their sum: (3, 128), (16, 80), (90, 1), (0, 50), (30, 5)
        assert rows.tolist() == [[0, 1, 10, 11], [6, 7, 10, 11], [4, 5, 10, 11], [2, 3, 8, 9]]


def test_a_row_is_measured_from_its_first_token_to_its_last():
    """With padding on both sides, with a gap, and with nothing in it."""
    ids = np.int32([[0, 0, 1, 1, 0], [1, 0, 0, 2, 0], [0, 0, 0, 0, 0], [0, 0, 0, 0, 3]])
    left_B, lengths_B = extents(ids)
    np.testing.assert_array_equal(left_B, [2, 0, 0, 4])
    np.testing.assert_array_equal(lengths_B, [2, 4, 0, 1])


def test_rows_that_are_none_are_zero():
    batch = {"a": jnp.arange(6).reshape(3, 2), "b": jnp.array([True, True, False])}
    found = rows_of(batch, jnp.array([2, 3, 0]))
    np.testing.assert_array_equal(found["a"], [[4, 5], [0, 0], [0, 1]])
    np.testing.assert_array_equal(found["b"], [False, False, True])


def test_a_loop_turns_most_often_where_all_rows_are_of_its_width():
    """Its name says so, for who counts the work of a program; no row is of a narrower one then."""
    ids = segments((128,) * 10, [0] * 10)

    def add(count, part, rows):
        return count + 1

    text = (
        jax.jit(
            lambda: fold(add, jnp.int32(0), {"ids": ids}, ids, Microbatching(tokens=300, widths=3))
        )
        .lower()
        .as_text(debug_info=True)
    )
    scopes = set(re.findall(r"microbatches_\d+x\d+_most_\d+", text))
    found = {scope: max_iterations(f"jit(f)/{scope}/while") for scope in scopes}
    assert found == {
        "microbatches_2x128_most_5": 5,
        "microbatches_3x96_most_0": 0,
        "microbatches_4x64_most_0": 0,
    }
    assert max_iterations("jit(f)/while") is None
    assert max_iterations("microbatches_2x128_most_5/body") is None
