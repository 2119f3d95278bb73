"""One distribution of all slots, and one for each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import Sampling
from rl4p.engine.distributions import OwnDistributions, SharedDistribution

n, V = 6, 40
LOGITS_NV = 3 * np.random.default_rng(0).standard_normal((n, V)).astype(np.float32)
KEYS_N, T_N = jax.random.split(jax.random.key(1), n), np.arange(n, dtype=np.int32)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(),
        Sampling(temperature=0.5, top_k=3),
        Sampling(top_p=0.7),
        Sampling(temperature=0.8, min_p=0.1),
        Sampling(temperature=1.2, top_k=12, top_p=0.95, min_p=0.05),
        Sampling(temperature=0.0),
    ],
)
def test_both_kinds_draw_the_same_tokens(sampling):
    greedy = sampling.temperature == 0
    shared = SharedDistribution(sampling=sampling, greedy=greedy)
    own = OwnDistributions.of([sampling] * n)
    logits_NV, active_n = jnp.asarray(LOGITS_NV), np.ones(n, bool)
    a, b = (x.draw(logits_NV, active_n, KEYS_N, T_N, 0) for x in (shared, own))
    np.testing.assert_array_equal(a.token_B, b.token_B)
    np.testing.assert_allclose(a.logprob_B, b.logprob_B, atol=1e-6)
    assert a.others_BA.shape == b.others_BA.shape == (n, 0)
    assert np.array_equal(a.token_B, LOGITS_NV.argmax(axis=1)) == greedy


def test_a_temperature_replaces_the_shared_one():
    logits_NV, active_n = jnp.asarray(LOGITS_NV), np.ones(n, bool)
    options = {"sampling": Sampling(temperature=0.5), "greedy": False}
    changed = SharedDistribution(**options | {"temperature": 2.0})
    wanted = SharedDistribution(**options | {"sampling": Sampling(temperature=2.0)})
    a, b, c = (
        x.draw(logits_NV, active_n, KEYS_N, T_N, 0)
        for x in (changed, wanted, SharedDistribution(**options))
    )
    np.testing.assert_allclose(a.logprob_B, b.logprob_B, atol=1e-6)
    assert not np.allclose(a.logprob_B, c.logprob_B)


def test_free_slots_neither_sort_nor_draw():
    """What a former sequence left has no effect: free slots take the most probable token."""
    own = OwnDistributions.of([Sampling(temperature=0.7, top_k=2, top_p=0.5, min_p=0.3)] * n)
    draws = own.draw(jnp.asarray(LOGITS_NV), np.zeros(n, bool), KEYS_N, T_N, 3)
    np.testing.assert_array_equal(draws.token_B, LOGITS_NV.argmax(axis=1))
    assert np.isfinite(draws.other_logprobs_BA).all()
