import json
from array import array
from itertools import islice

import hypothesis.strategies as st
import pytest
from hypothesis import given

from rl4p.base.errors import InputError
from rl4p.base.types import Demonstration
from rl4p.loop.source.stream import PromptStream


@pytest.fixture(scope="module")
def stream(make_prompt):
    def stream(size=7, seed=0, first=0):
        return PromptStream([make_prompt(id=str(first + i)) for i in range(size)], seed)

    return stream


def ids(prompts):
    return [prompt.id for prompt in prompts]


@given(size=st.integers(1, 9), takes=st.lists(st.integers(0, 25), min_size=1, max_size=6))
def test_counts_are_exact_and_every_epoch_is_a_permutation(stream, size, takes):
    ours = stream(size)
    taken = []
    for count in takes:
        new = ours.take(count, 0)
        assert len(new) == count
        taken += ids(new)
    for start in range(0, len(taken), size):
        epoch = taken[start : start + size]
        assert len(set(epoch)) == len(epoch)
    assert set(taken[:size]) <= set(ids(ours.prompts))


@pytest.mark.parametrize("offset", range(16))
def test_a_restored_stream_goes_on_as_if_it_had_never_stopped(stream, offset):
    """Tests every offset of two epochs of seven prompts, including the ends of epochs."""
    whole, ours, restored = stream(), stream(), stream()
    expected = whole.take(40, 0)
    ours.take(offset, 0)
    restored.take(3, 0)  # restoring must not depend on earlier calls
    restored.restore(json.loads(json.dumps(ours.state())))
    later = restored.take(11, 0) + restored.take(40 - offset - 11, 0)
    assert later == expected[offset:]


def test_orders_differ_by_epoch_and_by_seed_and_repeat_by_both(stream):
    epochs = [ids(stream(50, seed).take(100, 0)) for seed in (0, 0, 1)]
    orders = [tuple(epoch[half]) for epoch in epochs for half in (slice(50), slice(50, 100))]
    assert orders[:2] == orders[2:4]
    assert len(set(orders)) == 4


def test_small_takes_are_one_large_take(stream):
    ours = stream()
    singles = iter(lambda: ours.take(1, 0)[0], None)
    assert list(islice(singles, 30)) == stream().take(30, 0)


@pytest.mark.parametrize("change", [{"size": 8}, {"first": 1}])
def test_a_state_of_other_prompts_is_refused(stream, change):
    ours = stream()
    with pytest.raises(InputError, match="prompts are not those that the run started with"):
        ours.restore(stream(**change).state())
    assert ours.take(7, 0) == stream().take(7, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"answer": "other"},
        {"question": "other"},
        {"task": "other"},
        {"solution": "other"},
        {"tokens": (9,)},
        {"metadata": {"level": 2}},
        {"system_prompt": "other"},
        {"messages": ({"role": "user", "content": "other"},)},
        {"tools": ({"name": "other"},)},
        {"demonstration": Demonstration(tokens=array("i", range(2000)), trained=((1, 2),))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_state_of_prompts_with_other_contents_is_refused(make_prompt, change):
    """The ids are the same, but an answer in the file may have been corrected meanwhile."""
    state = PromptStream([make_prompt(id="a"), make_prompt(id="b")], seed=0).state()
    PromptStream([make_prompt(id="a"), make_prompt(id="b")], seed=0).restore(state)
    with pytest.raises(InputError, match="questions, answers or metadata changed"):
        PromptStream([make_prompt(id="a"), make_prompt(id="b", **change)], seed=0).restore(state)
