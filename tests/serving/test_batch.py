"""The completions that are decoded together, and the programs that decode them."""

import math

import numpy as np
import pytest

from rl4p.loop.compilation import compilation
from rl4p.serving import batch as batches
from rl4p.serving import programs
from rl4p.serving.batch import Batch, replicated
from rl4p.serving.slots import Running, Slots
from rl4p.serving.work import Work
from rl4p.types import Sampling


@pytest.fixture(scope="module")
def sampled(policy, params):
    return replicated(policy.mesh, policy.for_sampling(params))


def running(tokens=(5, 6, 7), seed=0, max_tokens=8, **fields):
    work = Work(
        **{"sampling": Sampling(), "end_ids": ()} | fields,
        tokens=tokens,
        seeds=[seed],
        max_tokens=max_tokens,
    )
    return Running(work=work, index=0, owner=None)


def finished(batch, params, new=(), most=100):
    """Decodes until nothing runs, and returns what ended in order."""
    ended = []
    for call in range(most):
        batch.admit(params, new if call == 0 else (), keep=False)
        batch.begin(params, waiting=False)
        ended += [x.running for x in batch.end().drawn() if x.ended]
        if not batch.running():
            return ended
    raise AssertionError("It does not end.")


def test_slots_and_columns_grow_and_shrink(policy, sampled, monkeypatch):
    monkeypatch.setattr(batches, "CALLS_BEFORE_SHRINKING", 2)
    batch = Batch(policy, 16)
    batch.steps = lambda size: 4
    first = running(max_tokens=70)
    batch.admit(sampled, [first], keep=False)
    sizes = set()
    more = [running(seed=i, max_tokens=9) for i in range(6)]
    while batch.running():
        sizes.add((len(batch.slots.rows), batch.columns))
        batch.begin(sampled, waiting=False)
        batch.end().drawn()
        if batch.running():
            batch.admit(sampled, more, keep=False)
        more = []
    assert sizes == {(4, 64), (16, 64), (4, 96)}
    alone = running(max_tokens=70)
    finished(Batch(policy, 4), sampled, [alone])
    assert first.tokens == alone.tokens


def test_equal_contexts_are_prefilled_once(policy, sampled):
    batch = Batch(policy, 4)
    several = [running(seed=i) for i in range(3)] + [running((9, 9))]
    finished(batch, sampled, several)
    assert (batch.prefills, batch.prefilled_tokens) == (2, 5)
    again = Batch(policy, 4)
    other = running(seed=2)
    finished(again, sampled, [other])
    assert other.tokens == several[2].tokens


def test_a_context_longer_than_a_part_is_read_in_parts(policy, sampled, monkeypatch):
    tokens = np.random.default_rng(0).integers(0, 256, 60).tolist()
    whole, parts = running(tokens), running(tokens)
    finished(Batch(policy, 4), sampled, [whole])
    monkeypatch.setattr(programs, "COLUMNS_PER_READ", 16)
    programs.prefill.clear_cache()
    finished(Batch(policy, 4), sampled, [parts])
    programs.prefill.clear_cache()
    assert parts.tokens == whole.tokens


def test_other_work_compiles_nothing(policy, sampled):
    batch = Batch(policy, 4)
    batch.steps = lambda size: 4
    finished(batch, sampled, [running(seed=i) for i in range(2)])
    before = compilation()
    several = [
        running(seed=3),
        running((1, 2), max_tokens=3, end_ids=(4, 5), sampling=Sampling(temperature=0.5, top_k=3)),
        running((1,) * 9, sampling=Sampling(temperature=0.0)),
    ]
    finished(batch, sampled, several)
    assert compilation().since(before).programs == 0


def test_a_call_lasts_about_as_long_as_it_should(policy):
    batch = Batch(policy, 4)
    batch.slots, batch.untimed = Slots(4), False
    assert batch.steps(4) == batches.FIRST_STEPS
    batch.time(8 * 0.002, 8)
    assert batch.steps(4) == math.ceil(batches.SECONDS_PER_CALL / 0.002)
    batch.time(1.0, 1)  # clients had the processor
    assert batch.steps(4) == math.ceil(batches.SECONDS_PER_CALL / 0.00204)
    batch.time(1e-5, 1)
    assert batch.steps(4) == programs.MOST_STEPS
