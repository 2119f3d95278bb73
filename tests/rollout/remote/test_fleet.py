"""Tests that engines share servers, and that each has the weights that it published."""

import threading
import time
from contextlib import closing

import jax

from rl4p.types import Finish
from tests.rollout.remote.cases import of_step, requests_of, updates
from tests.rollout.remote.doubles import rescored

PROMPTS = [[1, 2, 3], [5, 6, 7, 8, 9]]


def test_two_engines_of_the_same_servers_have_weights_of_their_own(opened, policy, params):
    with opened() as (engine, (double,)):
        engine.publish(of_step(params, 1), 1)
        with closing(engine.options.open(policy)) as other:
            other.publish(of_step(params, 2), 2)
            for each, step in ((engine, 1), (other, 2), (engine, 1)):
                found = each.complete(requests_of(PROMPTS, 1, 0))
                assert rescored(policy, of_step(params, step), found, PROMPTS) < 1e-4
                assert {int(v) for x in found for v in x.versions} == {step}
            assert updates(double) == 5
        assert engine.complete(requests_of(PROMPTS, 1, 0))


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
            while not any(server.running for server in engine.fleet.pool.servers):
                time.sleep(0.01)
            threads[1].start()
            if stop is None:
                assert not published.wait(0.5)
                double.holding.clear()
            threads[0].join()
            double.holding.clear()  # which holds the probe too
            threads[1].join()
            ended = Finish.LENGTH if stop is None else Finish.ABORT
            assert {x.finish for x in found} == {ended}
            assert {int(v) for x in found for v in x.versions} == {1}


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
