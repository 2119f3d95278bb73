"""Tests engines whose completions come from servers, against doubles without faults."""

import asyncio
import threading
import time
from contextlib import closing
from dataclasses import replace

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Finish
from rl4p.protocols.engine import Request
from tests.support.remote_doubles import rescored
from tests.support.remote_engines import (
    of_step,
    repeated,
    requests_of,
    updates,
)

PROMPTS = [[1, 2, 3], [5, 6, 7, 8, 9]]


def test_completions_are_those_of_the_published_weights(opened, policy, params):
    with opened() as (engine, (double,)):
        assert engine.version == -1
        with pytest.raises(RunError, match="no weights yet"):
            engine.complete(requests_of(PROMPTS, 1, 0))
        for step in (3, 4):
            weights = of_step(params, step)
            engine.publish(weights, step)
            assert engine.version == step
            found = engine.complete(requests_of(PROMPTS, 2, 0))
            assert rescored(policy, weights, found, repeated(PROMPTS, 2)) < 1e-4
            assert {int(v) for x in found for v in x.versions} == {step}
            assert {x.engine for x in found} == {double.url}


def test_a_call_counts_its_sequences_and_tokens(opened, params, counts):
    with opened() as (engine, _):
        engine.publish(of_step(params, 1), 1)
        completions = engine.complete(requests_of(PROMPTS, 3, 0))
    (count,) = [x for x in counts if x.total == 6]  # the double answers each with its own engine
    tokens = sum(len(x.tokens) for x in completions)
    assert (count.total, count.done, count.tokens) == (6, 6, tokens)


@pytest.mark.slow
def test_results_do_not_depend_on_the_servers_or_the_neighbours(opened, params):
    found = []
    weights = of_step(params, 1)
    for count in (1, 3):
        with opened(count) as (engine, _):
            engine.publish(weights, 1)
            found.append(engine.complete(requests_of(PROMPTS, 4, 0)))
            (alone,) = engine.complete([one_of(requests_of(PROMPTS, 4, 0)[1], 2)])
            np.testing.assert_array_equal(alone.tokens, found[-1][6].tokens)
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)
        np.testing.assert_array_equal(a.logprobs, b.logprobs)
    assert len({tuple(x.tokens) for x in found[0]}) == 8


def one_of(request, sample):
    return replace(request, keys_N=request.keys_N[sample : sample + 1])


def test_greedy_completions_do_not_depend_on_keys(opened, params):
    with opened() as (engine, _):
        engine.publish(of_step(params, 1), 1)
        greedy = engine.complete(requests_of(PROMPTS, 2, 0), greedy=True)
        others = engine.complete(requests_of(PROMPTS, 2, 1), greedy=True)
        for a, b in zip(greedy, others, strict=True):
            np.testing.assert_array_equal(a.tokens, b.tokens)


def test_a_stopped_call_keeps_the_tokens_so_far(opened, params):
    with opened() as (engine, (double,)):
        engine.publish(of_step(params, 1), 1)
        assert engine.stops
        double.holding.set()
        began = time.monotonic()
        found = engine.complete(
            requests_of(PROMPTS, 2, 0), stop=lambda finished: time.monotonic() > began + 0.3
        )
        assert [x.finish for x in found] == [Finish.ABORT] * 4
        assert [len(x.tokens) for x in found] == [2] * 4
        double.holding.clear()
        double.paused = False
        whole = engine.complete(requests_of(PROMPTS, 2, 0))
        for part, all_ in zip(found, whole, strict=True):
            np.testing.assert_array_equal(part.tokens, all_.tokens[:2])


def test_stop_sees_what_has_finished(opened, params):
    with opened() as (engine, _):
        engine.publish(of_step(params, 1), 1)
        seen = []
        requests = requests_of(PROMPTS, 2, 0)
        engine.complete(requests, stop=lambda finished: seen.append(finished) or False)
        assert all(finished.shape == (4,) and finished.dtype == bool for finished in seen)


def test_the_call_of_a_rollout_keeps_one_engine(protocol, opened, policy, params, prompts):
    with opened() as (engine, (double,)):
        rollout = engine.servers.pool.options
        key = jax.random.key(0)
        weights = of_step(params, 1)
        for _ in range(2):
            trajectories, episodes = rollout(
                policy, weights, prompts, group_size=2, key=key, version=1
            )
        assert updates(double) == 1
        assert len(episodes) == 2 * len(prompts)
        assert episodes[0].engine == double.url
        mask = np.asarray(trajectories.response_mask_BT)
        assert (np.asarray(trajectories.policy_version_BT)[mask] == 1).all()
        rollout.close()
        assert rollout.opened.engine is None
        rollout.close()


def test_a_request_beyond_the_positions_is_refused(opened, params):
    with opened() as (engine, _):
        engine.publish(of_step(params, 1), 1)
        request = Request(tokens=[1] * 125, keys_N=np.uint32([[0, 0]]), max_tokens=8)
        with pytest.raises(InputError, match="longer than the 128 positions"):
            engine.complete([request])


def test_a_closed_engine_says_so(opened, params):
    with opened() as (engine, _):
        engine.close()
        with pytest.raises(RunError, match="is closed"):
            engine.publish(of_step(params, 1), 1)


@pytest.mark.slow
def test_what_is_under_way_ends_with_the_servers(opened):
    """A task that is still pending would make a later test fail, in which its memory is freed."""
    began, ended = threading.Event(), []

    async def forever():
        began.set()
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append(True)

    with opened() as (engine, _):
        engine.servers.start(forever())
        assert began.wait(20)
    assert ended == [True]


def test_two_engines_of_the_same_servers_have_weights_of_their_own(opened, policy, params):
    with opened() as (engine, (double,)):
        engine.publish(of_step(params, 1), 1)
        with closing(engine.servers.pool.options.open(policy)) as other:
            other.publish(of_step(params, 2), 2)
            for each, step in ((engine, 1), (other, 2), (engine, 1)):
                found = each.complete(requests_of(PROMPTS, 1, 0))
                assert rescored(policy, of_step(params, step), found, PROMPTS) < 1e-4
                assert {int(v) for x in found for v in x.versions} == {step}
            assert updates(double) == 5
        assert engine.complete(requests_of(PROMPTS, 1, 0))


def waits_for_calls(servers):
    """Returns whether a publisher waits, once it has written its weights, or installs them."""
    while True:
        with servers.condition:
            if servers.publishers or servers.installing:
                return not servers.installing
        time.sleep(0.01)


@pytest.mark.slow
def test_new_weights_wait_for_calls_and_stop_those_that_can_be_stopped(opened, params):
    with opened() as (engine, (double,)):
        for stop in (None, lambda finished: False):
            engine.publish(of_step(params, 1), 1)
            double.holding.set()
            found, published = [], threading.Event()

            def call(stop=stop, found=found):
                found.extend(engine.complete(requests_of(PROMPTS, 2, 0), stop=stop))

            def publish(published=published):
                engine.publish(of_step(params, 2), 2)
                published.set()

            threads = [threading.Thread(target=each) for each in (call, publish)]
            threads[0].start()
            while not any(server.running for server in engine.servers.pool.servers):
                time.sleep(0.01)
            threads[1].start()
            if stop is None:
                assert waits_for_calls(engine.servers)
                assert not published.is_set()
                double.holding.clear()
            threads[0].join()
            double.holding.clear()  # which holds the probe too
            threads[1].join()
            ended = Finish.LENGTH if stop is None else Finish.ABORT
            assert {x.finish for x in found} == {ended}
            assert {int(v) for x in found for v in x.versions} == {1}


@pytest.mark.slow
def test_the_same_weights_are_sent_once_and_old_folders_are_deleted(opened, params, tmp_path):
    with opened() as (engine, (double,)):
        for step in (1, 2):
            weights = of_step(params, step)
            engine.publish(weights, step)
            engine.publish(weights, step)
            engine.publish(jax.tree.map(lambda x: x, weights), step)
            assert updates(double) == step
            assert len(list(tmp_path.glob("*/*.*safetensors"))) == 0
            assert len([x for x in tmp_path.glob("*/*") if (x / "config.json").exists()]) == 1
        engine.publish(of_step(params, 2), 2)
        assert updates(double) == 3
    assert not list(tmp_path.glob("*"))


PATHS = {
    "vllm": ("/sleep", "/wake_up"),
    "sglang": ("/release_memory_occupation", "/resume_memory_occupation"),
}


@pytest.mark.slow
def test_servers_sleep_between_two_calls_and_have_their_weights_again(protocol, opened, params):
    sleep, wake = PATHS[protocol]
    with opened(2, sleep=True) as (engine, doubles):
        engine.free()  # there is nothing to free
        for step in (1, 2):
            engine.publish(of_step(params, step), step)
            before = engine.complete(requests_of(PROMPTS, 2, 0))
            engine.free()
            engine.free()
            assert all(double.asleep for double in doubles)
            time.sleep(0.5)  # which nothing wakes
            assert all(double.asleep for double in doubles)
            again = engine.complete(requests_of(PROMPTS, 2, 0))  # with the same weights
            for ours, theirs in zip(before, again, strict=True):
                np.testing.assert_array_equal(ours.tokens, theirs.tokens)
            engine.free()
        for double in doubles:
            assert double.asked.count(sleep) == 4
            assert double.asked.count(wake) == 3
            assert double.asleep


@pytest.mark.slow
def test_a_server_that_is_started_again_while_others_sleep_takes_part(opened, params):
    with opened(1, sleep=True) as (engine, (double,)):
        engine.publish(of_step(params, 1), 1)
        engine.free()
        double.kill()
        double.asleep = False
        double.start()
        assert len(engine.complete(requests_of(PROMPTS, 1, 0))) == 2


def test_a_server_that_cannot_sleep_ends_the_run(protocol, opened, params):
    with opened(1, sleep=True) as (engine, (double,)):
        double.missing.add(PATHS[protocol][0])
        engine.publish(of_step(params, 1), 1)
        with pytest.raises(RunError, match=r"does not sleep \(rollout.sleep\): .*start it with"):
            engine.free()


def test_servers_do_not_sleep_without_the_option(opened, params):
    with opened(1) as (engine, (double,)):
        engine.publish(of_step(params, 1), 1)
        engine.free()
        assert not double.asleep
