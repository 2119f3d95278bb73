"""Tests that the trainer uses the experts that the sampler chose (2510.11370)."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Finish, Microbatching, Sampling
from rl4p.engine import layout
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.learner.packing import packed
from rl4p.loop.checks import check_trajectories
from rl4p.loop.groups import divided, joined
from rl4p.model.decoder import Decoder
from rl4p.protocols.engine import Request
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.sampler import sequence_keys

R, E, C = 16, 6, 2
SAMPLER = Continuous(max_response_tokens=R, slots=3, replay_experts=True)


@pytest.fixture(scope="module")
def mixture(policy):
    """Returns a policy whose second of three layers has no experts, and its parameters."""
    config = dataclasses.replace(
        policy.decoder.config,
        experts=E,
        chosen_experts=C,
        expert_width=24,
        layers=3,
        feed_forwards=("experts", "gated", "experts"),
    )
    decoder = Decoder(config=config)
    params = jax.tree.map(lambda x: 3 * x, decoder.init(jax.random.key(0)))
    own = dataclasses.replace(policy, decoder=decoder, end_ids=tuple(range(0, 264, 22)))
    return own, params


@pytest.fixture(scope="module")
def prompts(make_prompt):
    """Returns two prompts that are long enough for their groups to share them."""
    random = np.random.default_rng(0)
    return [make_prompt(tuple(random.integers(0, 250, n).tolist()), id=str(n)) for n in (80, 66)]


@pytest.fixture(scope="module")
def sampled(mixture, prompts):
    policy, params = mixture
    options = {"group_size": 4, "key": jax.random.key(1), "version": 0}
    return SAMPLER(policy, params, prompts, **options)


@pytest.fixture(scope="module")
def score(mixture):
    policy, params = mixture

    def score(trajectories, tokens=4096, params=params):
        microbatching = Microbatching(tokens=tokens, widths=2)
        options = ScoreOptions(
            decoder=policy.decoder, sampling=Sampling(), microbatching=microbatching
        )
        return np.asarray(score_tokens(options, params, trajectories)["logprobs"])

    return score


def alone(trajectories):
    return dataclasses.replace(trajectories, group_size=1, prompt_columns=0)


def chosen_by_the_decoder(policy, params, trajectories):
    """Returns the experts of whole rows, which the decoder reads at once."""
    decoder = dataclasses.replace(policy.decoder, records=True)

    def read(params, tokens, *rest):
        cache = decoder.empty_cache(*tokens.shape)
        return decoder.extend(params, tokens, *rest, cache, 0)[1].layers[-1].chosen_BSX

    rows = trajectories.tokens_BT, trajectories.positions_BT, trajectories.segment_ids_BT
    return np.asarray(jax.jit(read)(policy.for_sampling(params), *rows))


@pytest.mark.slow
def test_the_record_has_the_experts_of_each_token_but_the_last(mixture, sampled):
    policy, params = mixture
    trajectories, _ = sampled
    check_trajectories(trajectories)
    experts, real = (
        np.asarray(trajectories.experts_BTX),
        np.asarray(trajectories.segment_ids_BT) > 0,
    )
    assert experts.dtype == np.uint8
    assert experts.shape == (*real.shape, 2 * C)
    last = real & (np.cumsum(real, axis=1) == real.sum(axis=1, keepdims=True))
    assert len(set(real.sum(axis=1).tolist())) > 3
    expected = chosen_by_the_decoder(policy, params, trajectories)
    np.testing.assert_array_equal(experts[real & ~last], expected[real & ~last])
    assert (experts[~real | last] == 0).all()
    assert set(np.unique(experts)) == set(range(E + 1))


@pytest.mark.slow
def test_the_record_has_the_prompt_that_slots_share(mixture, prompts, sampled, monkeypatch):
    policy, params = mixture
    monkeypatch.setattr(layout, "SHARED_COLUMNS", 64)
    options = {"group_size": 4, "key": jax.random.key(1), "version": 0}
    ours, _ = SAMPLER(policy, params, prompts, **options)
    np.testing.assert_array_equal(ours.tokens_BT, sampled[0].tokens_BT)
    np.testing.assert_array_equal(ours.experts_BTX, sampled[0].experts_BTX)


@pytest.mark.slow
def test_the_trainer_uses_the_record_in_each_form_of_its_rows(sampled, score):
    """Shared prompts, microbatches and packed rows; with other experts than it would choose."""
    trajectories, _ = sampled
    own = score(dataclasses.replace(trajectories, experts_BTX=None))
    np.testing.assert_allclose(score(trajectories), own, atol=2e-5)
    np.testing.assert_allclose(own, trajectories.behaviour_logprobs_BT, atol=2e-5)
    experts = np.asarray(trajectories.experts_BTX)
    other = dataclasses.replace(
        trajectories, experts_BTX=jnp.asarray(np.where(experts > 0, experts % E + 1, 0), jnp.uint8)
    )
    expected = score(alone(other))
    assert np.abs(expected - own).max() > 0.1
    np.testing.assert_allclose(score(other), expected, atol=2e-5)
    np.testing.assert_allclose(score(alone(other), tokens=100), expected, atol=2e-5)
    short = dataclasses.replace(
        alone(
            jax.tree.map(
                lambda x: (
                    x
                    if x.ndim == 1
                    else jnp.pad(x[:, 40:], [(0, 0), (0, 90)] + [(0, 0)] * (x.ndim - 2))
                ),
                other,
            )
        ),
    )
    rows, segments = packed(short, short.segment_ids_BT)
    assert (np.asarray(segments).max(axis=1) > 0).sum() < len(segments)
    of_packed = score(dataclasses.replace(rows, segment_ids_BT=segments))
    of_rows = score(short)
    places = np.asarray(rows.response_mask_BT), np.asarray(short.response_mask_BT)
    np.testing.assert_allclose(
        np.sort(of_packed[places[0]]), np.sort(of_rows[places[1]]), atol=2e-5
    )


@pytest.mark.slow
def test_the_gap_in_bfloat16_is_what_rounding_alone_leaves(mixture, prompts):
    """Among 64 experts, the fourth and the fifth are often equal up to rounding."""
    policy, _ = mixture
    config = dataclasses.replace(
        policy.decoder.config, experts=64, chosen_experts=4, expert_width=8, feed_forwards=()
    )
    decoder = Decoder(config=config, dtype="bfloat16", remat="none")
    policy = dataclasses.replace(policy, decoder=decoder)
    params = jax.tree.map(lambda x: 3 * x, decoder.init(jax.random.key(0)))
    options = {"group_size": 4, "key": jax.random.key(1), "version": 0}
    recorded, _ = dataclasses.replace(SAMPLER, slots=None)(policy, params, prompts, **options)
    scores = ScoreOptions(
        decoder=decoder, sampling=Sampling(), microbatching=Microbatching(tokens=4096, widths=1)
    )
    gaps = {}
    for name, experts in (("replayed", recorded.experts_BTX), ("chosen again", None)):
        rows = dataclasses.replace(recorded, experts_BTX=experts)
        logprobs = score_tokens(scores, params, rows)["logprobs"]
        gaps[name] = np.abs(logprobs - rows.behaviour_logprobs_BT)[rows.response_mask_BT]
        print(f"{name}: gap {np.mean(gaps[name]):.4f} on average, {np.max(gaps[name]):.4f} at most")
    assert np.max(gaps["replayed"]) < 0.6 * np.max(gaps["chosen again"])


@pytest.mark.slow
def test_a_completion_that_is_stopped_has_the_experts_of_its_tokens(mixture, prompts):
    policy, params = mixture
    policy = dataclasses.replace(policy, end_ids=())
    engine = dataclasses.replace(SAMPLER, slots=None).open(policy)
    engine.publish(params, 0)
    keys = np.asarray(sequence_keys(jax.random.key(1), 2))
    requests = [
        Request(tokens=prompt.tokens, keys_N=keys[i : i + 1], max_tokens=40)
        for i, prompt in enumerate(prompts)
    ]
    whole = engine.complete(requests)
    nothing = engine.complete(requests, stop=lambda finished: True)
    assert [(len(x.tokens), x.experts.any()) for x in nothing] == [(0, False)] * 2
    calls = iter([False])
    stopped = engine.complete(requests, stop=lambda finished: next(calls, True))
    assert [x.finish for x in stopped] == [Finish.ABORT] * 2
    assert all(0 < len(x.tokens) < 40 for x in stopped)
    for request, one, other in zip(requests, stopped, whole, strict=True):
        n = len(request.tokens) + len(one.tokens)
        assert len(one.experts) == n
        np.testing.assert_array_equal(one.experts[: n - 1], other.experts[: n - 1])
        assert (other.experts[:-1] > 0).all()


@pytest.mark.slow
def test_groups_of_other_widths_are_joined_with_their_experts(sampled, score, make_rewards):
    trajectories, episodes = sampled
    groups = divided(trajectories, tuple(episodes), make_rewards([0.0] * 8))
    cut = [
        dataclasses.replace(
            groups[1],
            trajectories=jax.tree.map(
                lambda x: x if x.ndim == 1 else x[:, 62:], groups[1].trajectories
            ),
        )
    ]
    cut = [
        dataclasses.replace(
            cut[0],
            trajectories=dataclasses.replace(
                cut[0].trajectories, prompt_columns=groups[1].trajectories.prompt_columns - 62
            ),
        )
    ]
    batch, _, _ = joined([groups[0], *cut], pad_id=0)
    np.testing.assert_array_equal(batch.experts_BTX, trajectories.experts_BTX)
    missing = dataclasses.replace(
        cut[0], trajectories=dataclasses.replace(cut[0].trajectories, experts_BTX=None)
    )
    assert joined([groups[0], missing], pad_id=0)[0].experts_BTX is None


def test_a_model_without_experts_is_refused(policy):
    with pytest.raises(InputError, match="replay_experts=true has no effect, because the model"):
        SAMPLER.open(policy)


def test_drafts_are_refused(mixture):
    with pytest.raises(InputError, match=r"replay_experts=true .* set rollout.draft_tokens=0"):
        dataclasses.replace(SAMPLER, draft_tokens=2).open(mixture[0])
