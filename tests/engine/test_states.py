"""Layers with a state, which tokens are added to once and never taken from: sampled and trained."""

import dataclasses
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Microbatching, Sampling
from rl4p.distributed.mesh import Mesh
from rl4p.learner import shared_prompts
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.model.decoder_config import ConvolutionConfig, DeltaConfig, MambaConfig
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from tests.support.requests import mixed_requests, next_turns

R = 40


@pytest.fixture(scope="module")
def params(stateful):
    noise = np.random.default_rng(0)
    fresh = jax.device_get(jax.jit(stateful.decoder.init)(jax.random.key(0)))
    noisy = jax.tree.map(lambda x: np.float32(x + noise.normal(0, 0.1, x.shape)), fresh)
    return stateful.mesh.replicate(noisy)


@pytest.fixture(scope="module")
def stateful(policy):
    """Two periods of three kinds, and one layer of a fourth; one token in 44 ends a response."""
    config = dataclasses.replace(
        policy.decoder.config,
        layers=7,
        mixers=(*("mamba", "attention", "convolution") * 2, "delta"),
        mamba=MambaConfig(heads=4, head_width=8, groups=2, state=8),
        convolution=ConvolutionConfig(),
        delta=DeltaConfig(key_heads=2, value_heads=4, key_width=8, value_width=12),
    )
    decoder = dataclasses.replace(policy.decoder, config=config)
    return dataclasses.replace(policy, decoder=decoder, end_ids=tuple(range(0, 264, 44)))


@pytest.fixture(scope="module")
def ending(stateful):
    return stateful


@pytest.fixture(scope="module")
def requests():
    return mixed_requests(R)


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("slots", [None, 2])
def test_slots_and_their_reuse_change_nothing(stateful, params, requests, slots):
    """With two slots, each row of the cache has the states of several sequences in turn."""
    engines = [NaiveSampler(max_response_tokens=R), Continuous(max_response_tokens=R, slots=slots)]
    found = []
    for engine in (x.open(stateful) for x in engines):
        engine.publish(params, 3)
        found.append(engine.complete(requests))
    assert_same(*found)


@pytest.mark.slow
def test_a_sequence_is_continued_from_its_state(stateful, params, requests):
    """An ended sequence stays in its slot until the call ends, and its state must not go on."""

    def opened():
        engine = Continuous(max_response_tokens=R).open(stateful)
        engine.publish(params, 3)
        return engine

    engine = opened()
    first = engine.complete([dataclasses.replace(request, keep=True) for request in requests])
    later = next_turns(requests, first)
    before = engine.prefilled_tokens
    assert_same(engine.complete(later), opened().complete(later))
    assert engine.prefilled_tokens - before == 4 * len(later)


@pytest.mark.slow
def test_the_sampler_is_the_trainer(sample, stateful, params, monkeypatch):
    """Rows are padded on both sides, and so are the prompts that the rows of a group share."""
    trajectories, _ = sample(
        Continuous(max_response_tokens=R, slots=8), group_size=4, params=params
    )
    for most, shares in ((2048, False), (256, True)):
        monkeypatch.setattr(shared_prompts, "FEWEST_COLUMNS", 1 if shares else 64)
        assert shared_prompts.pays(stateful.decoder, trajectories, Mesh(dp=1)) == shares
        options = ScoreOptions(
            decoder=stateful.decoder,
            sampling=Sampling(),
            microbatching=Microbatching(tokens=most),
        )
        scores = score_tokens(options, params, trajectories)["logprobs"]
        mask = np.asarray(trajectories.response_mask_BT)
        gap = np.abs(np.asarray(scores) - np.asarray(trajectories.behaviour_logprobs_BT))[mask]
        assert gap.max() < 1e-4


def test_what_a_state_cannot_do_is_refused(stateful):
    with pytest.raises(InputError, match="draft_tokens=4 is not possible"):
        Continuous(max_response_tokens=R, draft_tokens=4).open(stateful)
    with pytest.raises(InputError, match="cp=2 is not possible"):
        dataclasses.replace(stateful, mesh=SimpleNamespace(column_shards=2))
