"""The sequences that are decoded together, and the programs that decode them."""

import math
from collections import deque

import jax
import numpy as np
import pytest

from rl4p.base.types import Sampling
from rl4p.engine import cache as programs
from rl4p.engine.batch import Batch, placed
from rl4p.engine.layout import Layout
from rl4p.engine.sequence import TokenSequence
from rl4p.loop.stopwatch import compilation


@pytest.fixture(scope="module")
def sampled(policy, params):
    return placed(policy, policy.for_sampling(params))


@pytest.fixture
def make_batch(policy):
    def make(*sizes, **options):
        layout = {"sizes": sizes or (4,), "most": 128, "prefill_rows": 8, "prefill_tokens": 256}
        layout |= {"patience": 8, "shrinks": True}
        return Batch(policy, Layout(**layout | options))

    return make


def sequence(tokens=(5, 6, 7), seed=0, max_tokens=8, **fields):
    key = np.asarray(jax.random.key_data(jax.random.key(seed)))
    fields = {"sampling": Sampling(), "end_ids": ()} | fields
    return TokenSequence(context=tokens, key=key, max_tokens=max_tokens, **fields)


def finished(batch, params, new=(), most=100, steps=8):
    """Decodes until nothing runs, and returns the sequences in the order in which they ended."""
    ended, waiting = [], deque(new)
    for _ in range(most):
        free = batch.layout.sizes[-1] - len(batch.slots.running())
        batch.admit(params, [waiting.popleft() for _ in range(min(free, len(waiting)))], keep=False)
        batch.begin(params, steps=steps, waiting=bool(waiting))
        ended += [x.sequence for x in batch.end().chunks() if x.finish is not None]
        if not batch.slots.running() and not waiting:
            return ended
    raise AssertionError("It does not end.")


@pytest.mark.slow
def test_slots_and_columns_grow_and_shrink(make_batch, sampled):
    batch = make_batch(4, 16, patience=2)
    first = sequence(max_tokens=70)
    batch.admit(sampled, [first], keep=False)
    sizes = set()
    more = [sequence(seed=i, max_tokens=9) for i in range(6)]
    while batch.slots.running():
        sizes.add((batch.size, batch.columns))
        batch.begin(sampled, steps=4, waiting=False)
        batch.end().chunks()
        if batch.slots.running():
            batch.admit(sampled, more, keep=False)
        more = []
    assert sizes == {(4, 64), (16, 64), (4, 96)}
    alone = sequence(max_tokens=70)
    finished(make_batch(), sampled, [alone])
    assert first.tokens == alone.tokens


def test_a_call_ends_where_the_cache_does(make_batch, sampled):
    """A column is left for the token that the next call reads."""
    batch, only = make_batch(), sequence((5,) * 50, max_tokens=40)
    batch.admit(sampled, [only], keep=False)
    batch.begin(sampled, steps=64, waiting=False)
    batch.end().chunks()
    assert (batch.columns, only.length) == (64, 64)
    batch.admit(sampled, [], keep=False)
    assert batch.columns == 96
    finished(batch, sampled)
    short = sequence((5,) * 50, max_tokens=40)
    finished(make_batch(), sampled, [short], steps=3)
    assert only.tokens == short.tokens


def test_equal_contexts_are_prefilled_once(make_batch, sampled):
    batch = make_batch()
    several = [sequence(seed=i) for i in range(3)] + [sequence((9, 9))]
    finished(batch, sampled, several)
    assert (batch.prefills, batch.prefilled_tokens) == (2, 5)
    other = sequence(seed=2)
    finished(make_batch(), sampled, [other])
    assert other.tokens == several[2].tokens


def test_a_context_longer_than_a_part_is_read_in_parts(make_batch, sampled, monkeypatch):
    tokens = np.random.default_rng(0).integers(0, 256, 60).tolist()
    whole, parts = sequence(tokens), sequence(tokens)
    finished(make_batch(), sampled, [whole])
    monkeypatch.setattr(programs, "COLUMNS_PER_READ", 16)
    programs.prefill.clear_cache()
    finished(make_batch(), sampled, [parts])
    programs.prefill.clear_cache()
    assert parts.tokens == whole.tokens


def test_other_sequences_compile_nothing(make_batch, sampled):
    batch = make_batch()
    for _ in range(2):  # the first creates the cache
        finished(batch, sampled, [sequence(seed=i) for i in range(2)], steps=4)
    before = compilation()
    several = [
        sequence(seed=3),
        sequence((1, 2), max_tokens=3, end_ids=(4, 5), sampling=Sampling(temperature=0.5, top_k=3)),
        sequence((1,) * 9, sampling=Sampling(temperature=0.0)),
    ]
    finished(batch, sampled, several, steps=4)
    assert compilation().since(before).programs == 0


@pytest.mark.quick(1)
@pytest.mark.parametrize("begin", [0, 32])
def test_a_sequence_depends_on_no_slot_neighbour_or_column(make_batch, sampled, begin):
    """Contexts that begin in column 0 and contexts that end in one column give the same tokens."""
    random = np.random.default_rng(1)
    contexts = [random.integers(0, 256, n).tolist() for n in (3, 30, 9, 17, 1, 16, 2)]
    limits = (9, 40, 5, 70, 23, 1, 30)

    def sequences():
        return [
            sequence(context, seed, limit, end_ids=tuple(range(0, 264, 44)))
            for seed, (context, limit) in enumerate(zip(contexts, limits, strict=True))
        ]

    alone, together = sequences(), sequences()
    for each in alone:
        finished(make_batch(), sampled, [each])
    finished(make_batch(2, 4, begin=begin, most=begin + 128), sampled, together[::-1])
    assert [x.tokens for x in together] == [x.tokens for x in alone]


def test_a_sequence_has_one_slot(make_batch, sampled):
    batch, only = make_batch(), sequence()
    with pytest.raises(ValueError, match="may not take a second one"):
        batch.admit(sampled, [only, only], keep=False)
    batch.admit(sampled, [only], keep=False)
    with pytest.raises(ValueError, match="may not take a second one"):
        batch.admit(sampled, [only], keep=False)
    assert batch.slots.running() == [only]


def test_only_calls_that_place_nothing_are_timed(make_batch, sampled):
    batch = make_batch()
    batch.admit(sampled, [sequence()], keep=False)
    seconds = []
    for _ in range(2):
        batch.begin(sampled, steps=2, waiting=False)
        seconds.append(batch.end().seconds)
    assert math.isnan(seconds[0])
    assert seconds[1] > 0
