"""Requests of all kinds, answered by the engine of each sampler."""

import dataclasses
import gc

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Finish
from rl4p.engine import batch as batches
from rl4p.engine import in_process
from rl4p.engine.cache import prefill
from rl4p.engine.decode import decode
from rl4p.loop.stopwatch import compilation
from rl4p.protocols.engine import Request
from rl4p.rollout.annealing import Linear
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from tests.support.requests import keys, mixed_requests, next_turns

R = 40
KINDS = [Continuous, NaiveSampler]
QUICK = [Continuous, pytest.param(NaiveSampler, marks=pytest.mark.slow)]


@pytest.fixture(scope="module")
def ending(policy):
    """One token in 44 ends a response: some are short, some are cut at R."""
    return dataclasses.replace(policy, end_ids=tuple(range(0, 264, 44)))


@pytest.fixture(params=QUICK)
def engine(request, ending, params):
    engine = request.param(max_response_tokens=R, temperature=0.9, top_k=200).open(ending)
    engine.publish(params, 3)
    return engine


@pytest.fixture(scope="module")
def requests():
    return mixed_requests(R)


def assert_same(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-5)
        assert (a.versions.tolist(), a.finish) == (b.versions.tolist(), b.finish)


@pytest.mark.slow
def test_each_completion_is_its_requests_own(engine, requests, ending):
    """Alone, in another order, or beside others: the same tokens."""
    together = engine.complete(requests)
    alone = [x for request in requests for x in engine.complete([request])]
    assert_same(together, alone)
    one_key = [
        dataclasses.replace(request, keys_N=key[None])
        for request in requests
        for key in request.keys_N
    ]
    assert_same(together, engine.complete(one_key[::-1])[::-1])
    limits = [R, 5, 30, 30, 30, R, 1, 1]
    for completion, limit in zip(together, limits, strict=True):
        tokens = completion.tokens.tolist()
        assert 1 <= len(tokens) <= limit
        assert not set(tokens[:-1]) & set(ending.end_ids)
        stopped = tokens[-1] in ending.end_ids
        assert completion.finish == (Finish.STOP if stopped else Finish.LENGTH)
        assert stopped or len(tokens) == limit
        assert completion.versions.tolist() == [3] * len(tokens)
    assert {x.finish for x in together} == {Finish.STOP, Finish.LENGTH}
    assert len({tuple(x.tokens) for x in together[2:5]}) == 3  # of one context, by three keys


@pytest.mark.slow
def test_both_samplers_answer_alike(ending, params, requests):
    found = []
    for kind in KINDS:
        engine = kind(max_response_tokens=R).open(ending)
        engine.publish(params, 0)
        found.append(engine.complete(requests))
    assert_same(*found)


def test_a_call_releases_its_cache(ending, params, requests):
    """Without waiting for the garbage collector, which large arrays do not hurry."""
    engine = Continuous(max_response_tokens=R).open(ending)
    engine.publish(params, 0)
    engine.complete(requests)
    gc.collect()
    before = len(jax.live_arrays())
    gc.disable()
    try:
        engine.complete(requests)
        assert len(jax.live_arrays()) <= before
    finally:
        gc.enable()


def test_a_call_counts_its_sequences_and_tokens(engine, requests, counts):
    completions = engine.complete(requests)
    (count,) = counts
    assert (count.phase, count.unit, count.total) == ("rollout", "sequences", 8)
    if engine.stops:  # a static batch is one program, which tells nothing before its end
        assert (count.done, count.tokens) == (8, sum(len(x.tokens) for x in completions))


@pytest.mark.slow
def test_a_partial_response_goes_on_as_if_it_had_not_stopped(engine, ending, requests):
    (whole,) = engine.complete(requests[:1])
    assert len(whole.tokens) > 8
    first = dataclasses.replace(requests[0], max_tokens=8)
    (begun,) = engine.complete([first])
    rest = dataclasses.replace(
        requests[0],
        tokens=[*requests[0].tokens, *begun.tokens.tolist()],
        max_tokens=R - 8,
        drawn=8,
    )
    (ended,) = engine.complete([rest])
    assert [*begun.tokens, *ended.tokens] == whole.tokens.tolist()
    logprobs = np.concatenate([begun.logprobs, ended.logprobs])
    np.testing.assert_allclose(logprobs, whole.logprobs, atol=1e-5)
    (again,) = engine.complete([dataclasses.replace(rest, drawn=0)])
    assert again.tokens.tolist() != ended.tokens.tolist()


def test_new_weights_are_used_from_the_next_completion_on(engine, params, requests):
    before = engine.complete(requests, greedy=True)
    engine.publish(jax.tree.map(lambda x: -x, params), 4)
    after = engine.complete(requests, greedy=True)
    assert engine.version == 4
    assert {int(v) for x in after for v in x.versions} == {4}
    assert [x.tokens.tolist() for x in before] != [x.tokens.tolist() for x in after]
    engine.close()
    assert engine.weights == (None, -1, {})


def test_a_request_that_the_model_has_no_positions_for_is_refused(engine):
    request = Request(tokens=[5] * 100, keys_N=keys(0), max_tokens=29)
    sentence = "100 tokens with max_tokens=29 is longer than the 128 positions of the model"
    with pytest.raises(InputError, match=sentence):
        engine.complete([request])


def test_a_call_that_is_stopped_returns_what_it_has(ending, params, requests, monkeypatch):
    monkeypatch.setattr(in_process, "BETWEEN_STOPS", 4)
    whole = Continuous(max_response_tokens=R).open(ending)
    whole.publish(params, 3)
    assert whole.stops
    expected = whole.complete(requests)
    longest = max(len(completion.tokens) for completion in expected)
    for turns in range(longest // 4 + 2):
        left = iter(range(turns))
        found = whole.complete(requests, stop=lambda _, left=left: next(left, None) is None)
        for part, completion, limit in zip(
            found, expected, (R, 5, 30, 30, 30, R, 1, 1), strict=True
        ):
            done = min(4 * turns, len(completion.tokens))
            assert part.tokens.tolist() == completion.tokens[:done].tolist()
            np.testing.assert_allclose(part.logprobs, completion.logprobs[:done], atol=1e-5)
            ended = done == len(completion.tokens)
            assert part.finish == (completion.finish if ended else Finish.ABORT)
            assert ended or done < limit
    assert [x.tokens.tolist() for x in found] == [x.tokens.tolist() for x in expected]


def test_calls_that_may_be_stopped_have_few_sizes(ending, params, monkeypatch):
    """After an interruption, any number of sequences is left. Each size would compile."""
    sizes, used, rows = [], [], []

    def noted(decoder, params, cache, state, *args, **kwargs):
        sizes.append(cache.positions_BS.shape)
        used.append(int(np.asarray(state.active_n).sum()))
        return decode(decoder, params, cache, state, *args, **kwargs)

    def prefilled(decoder, params, tokens_PT, *args):
        rows.append(tokens_PT.shape)
        return prefill(decoder, params, tokens_PT, *args)

    engine = Continuous(max_response_tokens=R).open(ending)
    engine.publish(params, 3)
    requests = [Request(tokens=[70 + i], keys_N=keys(i), max_tokens=9 + i) for i in range(8)]
    expected = engine.complete(requests)
    monkeypatch.setattr(batches, "decode", noted)
    monkeypatch.setattr(batches.programs, "prefill", prefilled)
    for count in (5, 6, 8):
        seen = []

        def go_on(finished, seen=seen):
            seen.append(len(finished))
            return False

        found = engine.complete(requests[:count], stop=go_on)
        assert (set(seen), max(used)) == ({count}, count)
        assert [x.tokens.tolist() for x in found] == [x.tokens.tolist() for x in expected[:count]]
    assert set(sizes) == {(8, 16 + R)}
    assert set(rows) == {(8, 16)}


def test_a_call_keeps_the_weights_that_it_began_with(ending, params, requests):
    engine = Continuous(max_response_tokens=R).open(ending)
    engine.publish(params, 3)
    expected = engine.complete(requests, greedy=True)
    published = []

    def publish(_):
        if not published:
            published.append(engine.publish(jax.tree.map(lambda x: -x, params), 4))
        return False

    assert_same(engine.complete(requests, greedy=True, stop=publish), expected)
    assert engine.version == 4


@pytest.mark.slow
@pytest.mark.parametrize("slots", [None, pytest.param(3, marks=pytest.mark.slow)])
def test_a_kept_sequence_is_continued_from_its_cache(ending, params, requests, slots):
    """Only the last drawn token and the new ones are computed, wherever contexts begin."""

    def opened():
        engine = Continuous(max_response_tokens=R, slots=slots).open(ending)
        engine.publish(params, 3)
        return engine

    engine, counts = opened(), []

    def complete(requests):
        before = engine.prefilled_tokens
        completions = engine.complete(requests)
        counts.append(engine.prefilled_tokens - before)
        return completions

    first = complete([dataclasses.replace(request, keep=True) for request in requests])
    later = next_turns(requests, first)
    assert_same(complete(later), opened().complete(later))
    assert_same(complete(later[::-1]), opened().complete(later[::-1]))
    engine.publish(params, 3)
    complete(later)
    whole = sum(len(request.tokens) for request in later)
    assert counts == [sum(len(x.tokens) for x in requests), *[4 * len(later)] * 2, whole]


@pytest.mark.slow
@pytest.mark.parametrize("kind", QUICK)
def test_the_temperature_is_that_of_the_weight_version(kind, ending, params, requests):
    annealed = kind(max_response_tokens=R, annealing=Linear(end=0.4, steps=4)).open(ending)
    for version, temperature in ((0, 1.0), (2, 0.7), (4, 0.4)):
        constant = kind(max_response_tokens=R, temperature=temperature).open(ending)
        for engine in (annealed, constant):
            engine.publish(params, version)
        assert_same(annealed.complete(requests), constant.complete(requests))


def test_another_temperature_compiles_nothing(ending, params, requests):
    engine = NaiveSampler(max_response_tokens=R, annealing=Linear(end=0.4, steps=4)).open(ending)
    engine.publish(params, 0)
    engine.complete(requests)
    before = compilation()
    engine.publish(params, 3)
    engine.complete(requests)
    assert compilation().since(before).programs == 0
