"""Every fault of a server loses no completion and returns no wrong token."""

import random
import threading
import time
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rl4p.base.errors import RunError
from rl4p.base.http import pause
from rl4p.base.types import Finish
from rl4p.engine.remote import pool
from tests.support.remote_doubles import ANSWERS, BEFORE_ANSWERS, OF_ANSWERS, UPDATES, rescored
from tests.support.remote_engines import (
    engine_on,
    of_step,
    repeated,
    requests_of,
)

PROMPTS = [[1, 2, 3], [5, 6, 7, 8, 9], [40, 41]]
AFTER_UPDATES = ("stale", "old_label", "no_success")


@pytest.fixture(scope="module")
def ending(policy):
    """A policy with many end tokens, so that completions have several lengths."""
    return replace(policy, end_ids=tuple(range(0, 260, 8)))


@pytest.fixture
def opened(protocol, ending, params, tmp_path):
    def open_engine(count=2, **options):
        return engine_on(protocol, ending, params, count, tmp_path, **options)

    return open_engine


@pytest.fixture(scope="module")
def served(protocol, ending, params, tmp_path_factory):
    """An engine with weights, and two doubles that answer quickly."""
    folder, quick = tmp_path_factory.mktemp("weights"), {"timeout_seconds": 0.7}
    with engine_on(protocol, ending, params, 2, folder, **quick) as (engine, doubles):
        doubles[0].decode([1], 0, 8, 1.0)  # compiles
        engine.publish(of_step(params, 1), 1)
        yield engine, doubles


@pytest.fixture(scope="module")
def check(ending, params):
    """Checks that the completions are those of the keys, under the weights of a step."""

    def check(engine, step, seed=0, count=3):
        found = engine.complete(requests_of(PROMPTS, count, seed))
        assert len(found) == len(PROMPTS) * count
        for completion in found:
            n = len(completion.tokens)
            assert completion.finish in (Finish.STOP, Finish.LENGTH)
            assert n == 8 or completion.finish == Finish.STOP
            assert (completion.tokens[-1] in ending.end_ids) == (completion.finish == Finish.STOP)
            assert completion.versions.tolist() == [step] * n
            assert len(completion.logprobs) == n
        weights = of_step(params, step)
        assert rescored(ending, weights, found, repeated(PROMPTS, count)) < 1e-4
        return found

    return check


class Once:
    """A fault of the first request to some paths; `met` has it afterwards."""

    def __init__(self, paths, fault):
        self.paths, self.fault, self.met, self.lock = paths, fault, [], threading.Lock()

    def __call__(self, path):
        with self.lock:
            if path in self.paths and not self.met:
                self.met.append(self.fault)
                return self.fault
        return None


@pytest.mark.slow
@pytest.mark.parametrize("fault", [*BEFORE_ANSWERS, *OF_ANSWERS])
def test_a_fault_of_answers_loses_nothing(served, check, fault):
    engine, (bad, good) = served
    wait_until(lambda: all(server.healthy for server in engine.servers.pool.servers))
    bad.fault = Once(ANSWERS, fault)
    found = check(engine, 1)
    assert bad.fault.met == [fault]
    bad.released.set()
    bad.fault, good.fault = (lambda path: None), (lambda path: None)
    wait_until(lambda: all(server.healthy for server in engine.servers.pool.servers))
    bad.released.clear()
    for a, b in zip(found, check(engine, 1), strict=True):
        np.testing.assert_array_equal(a.tokens, b.tokens)


@pytest.mark.quick(1)
@pytest.mark.parametrize("fault", AFTER_UPDATES)
def test_a_server_that_does_not_have_the_weights_gets_no_requests(opened, check, params, fault):
    paths = UPDATES | {"/finish_weight_update", "/reset_prefix_cache"}
    with opened(health_seconds=30) as (engine, (bad, good)):
        engine.publish(of_step(params, 1), 1)
        bad.missing |= {"/weight_checker", "/weights_checker"}  # the probe has to see it
        bad.fault = lambda path: fault if path in paths else None
        engine.publish(of_step(params, 2), 2)
        assert {x.engine for x in check(engine, 2)} == {good.url}
        assert not engine.servers.pool.servers[0].healthy


@pytest.mark.slow
def test_a_stale_server_is_found_by_the_probe_alone(opened, params, caplog):
    with opened(max_probe_gap=None) as (engine, (bad, _)):
        engine.publish(of_step(params, 1), 1)
        bad.missing |= {"/weight_checker", "/weights_checker"}
        bad.fault = lambda path: "stale" if path in UPDATES else None
        engine.publish(of_step(params, 2), 2)
    assert "still decodes with the weights before" in caplog.text


def test_a_server_with_other_checksums_gets_no_requests(opened, params, caplog):
    with opened(max_probe_gap=None) as (engine, (bad, _)):
        bad.fault = lambda path: "stale" if path in UPDATES else None
        engine.publish(of_step(params, 1), 1)
    assert "its checksum of" in caplog.text


@pytest.mark.slow
def test_a_server_may_have_a_faster_checksum(opened, params, caplog):
    with opened(max_probe_gap=None) as (engine, (bad, good)):
        bad.has_crc32 = good.has_crc32 = True
        engine.publish(of_step(params, 1), 1)
        assert all(server.healthy for server in engine.servers.pool.servers)
        bad.fault = lambda path: "stale" if path in UPDATES else None
        engine.publish(of_step(params, 2), 2)
    assert "its checksum of" in caplog.text


@pytest.mark.slow
def test_a_killed_server_is_let_in_again_with_the_current_weights(opened, check, params):
    with opened() as (engine, (first, second)):
        engine.publish(of_step(params, 1), 1)
        first.kill()
        assert {x.engine for x in check(engine, 1)} == {second.url}
        first.start()
        wait_until(lambda: all(server.healthy for server in engine.servers.pool.servers))
        second.kill()
        assert {x.engine for x in check(engine, 1)} == {first.url}


@pytest.mark.slow
def test_a_server_that_dies_meanwhile_loses_nothing(opened, check, params):
    with opened() as (engine, (first, second)):
        engine.publish(of_step(params, 1), 1)
        for double in (first, second):
            double.holding.set()
        found = []
        thread = threading.Thread(target=lambda: found.extend(check(engine, 1)))
        thread.start()
        wait_until(lambda: all(s.running for s in engine.servers.pool.servers))
        first.kill()
        second.holding.clear()
        thread.join()
        assert {x.engine for x in found} == {second.url}


@pytest.mark.slow
def test_the_load_is_shared(opened, check, params):
    with opened() as (engine, doubles):
        engine.publish(of_step(params, 1), 1)
        counts = Counter(completion.engine for completion in check(engine, 1, count=8))
        assert counts.keys() == {double.url for double in doubles}


@pytest.mark.slow
def test_no_server_left_is_an_error_that_names_each(opened, params):
    with opened(patience=0.5) as (engine, doubles):
        engine.publish(of_step(params, 1), 1)
        for double in doubles:
            double.kill()
        with pytest.raises(RunError, match=r"could be used for 0\.5 seconds") as error:
            engine.complete(requests_of(PROMPTS, 2, 0))
        for double in doubles:
            assert f"{double.url} (" in str(error.value)


def test_a_request_that_always_fails_is_an_error(opened, params, monkeypatch):
    monkeypatch.setattr(pool, "FAILURES_IN_A_ROW", 10**6)
    monkeypatch.setattr(pool, "short_pause", lambda *_: 0.0)
    with opened(1, attempts=4) as (engine, (bad,)):
        engine.publish(of_step(params, 1), 1)
        bad.fault = lambda path: "500" if path in ANSWERS else None
        with pytest.raises(RunError, match="has failed 4 times"):
            engine.complete(requests_of(PROMPTS, 1, 0))


def test_weights_that_no_server_takes_are_an_error(opened, params):
    with opened() as (engine, doubles):
        for double in doubles:
            double.fault = lambda path: "stale" if path in UPDATES else None
        with pytest.raises(RunError, match=r"No server of rollout\.servers can be used: http"):
            engine.publish(of_step(params, 1), 1)


@pytest.mark.slow
def test_weights_that_servers_stop_to_take_are_an_error_at_once(opened, params):
    """A run does not wait for what no waiting changes."""
    with opened(patience=600) as (engine, doubles):
        engine.publish(of_step(params, 1), 1)
        for double in doubles:
            double.fault = lambda path: "stale" if path in UPDATES else None
        with pytest.raises(RunError, match="can be used, after 3 attempts: http"):
            engine.publish(of_step(params, 2), 2)


def wait_until(holds):
    while not holds():
        time.sleep(0.01)


@pytest.mark.slow
def test_random_faults_lose_nothing(opened, check, params, monkeypatch):
    """A hundred steps, in each of which the servers have other faults, or die and come back."""
    monkeypatch.setattr(pool, "short_pause", partial(pause, first=0.01, longest=10.0))
    chance = random.Random(7)
    faults = [*BEFORE_ANSWERS, *OF_ANSWERS, *AFTER_UPDATES]
    seen, lock = Counter(), threading.Lock()

    def fault_of(path):
        with lock:
            if path in ANSWERS | UPDATES and chance.random() < 0.1:
                seen[fault := chance.choice(faults)] += 1
                return fault
        return None

    with opened(3, timeout_seconds=1.0, update_seconds=3.0, attempts=50) as (engine, doubles):
        for step in range(100):
            for double in doubles:
                double.fault = fault_of
            killed = chance.choice(doubles) if step % 5 == 4 else None
            if killed is not None:
                killed.kill()
            engine.publish(of_step(params, step), step)
            check(engine, step, seed=step, count=4)
            if killed is not None:
                killed.start()
    assert set(seen) == set(faults)
