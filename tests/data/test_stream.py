import json
from itertools import islice

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rl4p.data.stream import PromptStream


def stream(size=7, seed=0):
    return PromptStream([f"prompt {i}" for i in range(size)], seed)  # type: ignore[arg-type]


@given(size=st.integers(1, 9), takes=st.lists(st.integers(0, 25), min_size=1, max_size=6))
def test_counts_are_exact_and_every_epoch_is_a_permutation(size, takes):
    ours = stream(size)
    taken = []
    for count in takes:
        new = ours.take(count)
        assert len(new) == count
        taken += new
    for start in range(0, len(taken), size):
        epoch = taken[start : start + size]
        assert len(set(epoch)) == len(epoch)
    assert set(taken[:size]) <= set(ours.prompts)


@pytest.mark.parametrize("offset", range(16))
def test_a_restored_stream_goes_on_as_if_it_had_never_stopped(offset):
    """At every offset of two epochs of seven, their ends among them."""
    whole, ours, restored = stream(), stream(), stream()
    expected = whole.take(40)
    ours.take(offset)
    restored.take(3)  # whatever it did before
    restored.restore(json.loads(json.dumps(ours.state())))
    later = restored.take(11) + restored.take(40 - offset - 11)
    assert later == expected[offset:]


def test_orders_differ_by_epoch_and_by_seed_and_repeat_by_both():
    epochs = [stream(50, seed).take(100) for seed in (0, 0, 1)]
    orders = [tuple(epoch[half]) for epoch in epochs for half in (slice(50), slice(50, 100))]
    assert orders[:2] == orders[2:4]
    assert len(set(orders)) == 4


def test_small_takes_are_one_large_take():
    ours = stream()
    singles = iter(lambda: ours.take(1)[0], None)
    assert list(islice(singles, 30)) == stream().take(30)
