"""Tests that a sleeping server holds no memory, and has its weights again afterwards."""

from contextlib import closing

import jax
import numpy as np
import pytest

from rl4p.base.errors import RunError
from rl4p.engine.serving.scheduler import Scheduler
from rl4p.tools.serving.sleep import Sleep
from tests.engine.serving.test_scheduler import Client, sequences


@pytest.fixture
def scheduler(policy, params):
    copy = jax.tree.map(np.array, jax.device_get(params))
    with closing(Scheduler(policy, jax.device_put(copy), "first", slots=4)) as scheduler:
        yield scheduler


def drawn(scheduler):
    client = Client()
    scheduler.submit(sequences(), client.deliver, client.fail)
    return client.wait().result().tokens


def device_bytes(scheduler):
    """The bytes of arrays of the scheduler."""
    leaves = jax.tree.leaves((scheduler.params, scheduler.batch.cache))
    return sum(leaf.nbytes for leaf in leaves)


@pytest.mark.parametrize("keep", [True, False])
def test_a_server_that_sleeps_holds_neither_weights_nor_cache(scheduler, keep):
    before, weights = drawn(scheduler), scheduler.params
    leaves = jax.tree.leaves(weights)
    lease, sleep = scheduler.pause("abort", 10), Sleep(scheduler)
    sleep.begin(keep=keep)
    assert device_bytes(scheduler) == 0
    assert (sleep.weights is not None) == keep
    sleep.end()
    assert jax.tree.structure(scheduler.params) == jax.tree.structure(weights)
    for old, new in zip(leaves, jax.tree.leaves(scheduler.params), strict=True):
        assert (old.shape, old.dtype, old.sharding) == (new.shape, new.dtype, new.sharding)
        np.testing.assert_array_equal(new, old if keep else np.zeros_like(old))
    scheduler.resume(lease)
    if not keep:
        with pytest.raises(RunError, match="load weights first"):
            drawn(scheduler)
        scheduler.replace(lambda _: weights, "second", recompute=True)
    assert drawn(scheduler) == before
