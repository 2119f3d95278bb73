"""The compiled program that decodes the sequences in slots."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import Sampling
from rl4p.engine.cache import place, prefill
from rl4p.engine.decode import (
    MOST_STEPS,
    Outcome,
    OwnDistributions,
    SharedDistribution,
    SlotState,
    decode,
    packed,
    without,
)
from rl4p.engine.sequence import Slots, TokenSequence
from rl4p.model.sampling import Draws
from tests.support.streams import MeshOf

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


@pytest.fixture
def call(policy, params):
    """Decodes four sequences with one context and limits of 2, 4, 6 and 8 tokens."""
    sampled = policy.for_sampling(params)

    def call(steps, enough, columns=64):
        context, slots = [5, 6, 7], Slots(4)
        for slot in range(4):
            key = np.uint32([0, slot])
            limit = 2 * slot + 2
            slots.put(
                slot, TokenSequence(context=context, key=key, max_tokens=limit, end_ids=()), 0
            )
        tokens_PT = np.int32([[*context, *[0] * 13]])
        counts = np.int32([0]), np.int32([3])
        prefilled = prefill(policy.decoder, sampled, tokens_PT, *counts, policy.mesh)
        cache = place(None, prefilled, np.zeros(4, np.int32), columns, policy.mesh)
        arrays = cache, slots.state, slots.constants
        distribution = SharedDistribution(sampling=Sampling(), greedy=False)
        options = {"extras": False, "mesh": policy.mesh}
        _, numbers, _ = decode(
            policy.decoder, sampled, *arrays, distribution, steps, enough, **options
        )
        return Outcome.of(numbers)

    return call


@pytest.mark.slow
def test_a_call_ends_by_its_steps_by_its_sequences_or_with_its_cache(call):
    whole = call(64, 0)
    assert (whole.steps, whole.drawn_n.tolist()) == (8, [2, 4, 6, 8])
    assert not whole.active_n.any()
    few = call(3, 0)
    assert (few.steps, few.drawn_n.tolist()) == (3, [2, 3, 3, 3])
    assert few.active_n.tolist() == [False, True, True, True]
    enough = call(64, 2)
    assert (enough.steps, enough.drawn_n.tolist()) == (4, [2, 4, 4, 4])
    full = call(64, 0, columns=16)
    assert full.drawn_n.tolist() == [2, 4, 6, 8]
    for outcome in (few, enough):
        for slot, count in enumerate(outcome.drawn_n):
            tokens = outcome.tokens_nM[slot, :count].tolist()
            assert tokens == whole.tokens_nM[slot, :count].tolist()


@pytest.mark.parametrize(("platform", "kernels", "scatters"), [("tpu", 4, 0), ("cpu", 0, 6)])
def test_a_tpu_writes_all_rows_by_one_kernel(policy, params, platform, kernels, scatters):
    """Keys and values of two layers. A TPU makes a loop over the rows of a scatter."""
    sampled, slots, mesh = policy.for_sampling(params), Slots(4), MeshOf(dp=1, name=platform)
    traced = decode.trace(
        *(policy.decoder, sampled, policy.decoder.empty_cache(4, 64)),
        *(slots.state, slots.constants, SharedDistribution(sampling=Sampling(), greedy=False)),
        *(8, 0),
        extras=False,
        mesh=mesh,
    )
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert text.count("@tpu_custom_call") == kernels
    assert text.count('"stablehlo.scatter"') == scatters


def test_the_host_reads_what_was_packed():
    tokens_nM = jnp.arange(2 * MOST_STEPS, dtype=jnp.int32).reshape(2, -1)
    logprobs_nM = -0.37 * tokens_nM.astype(jnp.float32)
    zeros_n = jnp.zeros(2, jnp.int32)
    state = SlotState(zeros_n, zeros_n, jnp.int32([7, 9]), jnp.array([True, False]))
    none = jnp.zeros((2, MOST_STEPS, 0))
    outcome = Outcome.of(packed(jnp.int32(5), state, Draws(tokens_nM, logprobs_nM, none, none)))
    assert (outcome.steps, outcome.drawn_n.tolist()) == (5, [7, 9])
    assert outcome.active_n.tolist() == [True, False]
    np.testing.assert_array_equal(outcome.tokens_nM, tokens_nM)
    np.testing.assert_array_equal(outcome.logprobs_nM, logprobs_nM)


def test_end_tokens_are_taken_out_of_rows():
    logits = without(jnp.zeros((2, 5)), np.int32([[1, 3], [-1, -1]]))
    assert jax.device_get(jnp.isinf(logits)).tolist() == [
        [False, True, False, True, False],
        [False] * 5,
    ]
