"""Tests that the trainer normalises over the tokens that the sampler could draw."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Microbatching, Sampling
from rl4p.configuration import compose
from rl4p.engine.decode import SharedDistribution
from rl4p.learner import logprobs
from rl4p.learner.logprobs import ScoreOptions, score_tokens, token_scores, trunk
from rl4p.learner.preferences import mismatched
from rl4p.loop.loop import train
from rl4p.model.sampling import recorded_support, sampling_logprobs
from rl4p.rollout.continuous import Continuous
from rl4p.runs.build import build, build_phases

K, T = 8, 0.8
CUT = Sampling(temperature=T, top_k=K, top_p=0.9)
REPLAYED = dataclasses.replace(CUT, replay_support=True)
SAMPLER = Continuous(max_response_tokens=12, slots=3, temperature=T, top_k=K, top_p=0.9)
RUN = (
    *("model=scratch", "model.layers=1", "model.heads=2", "model.num_kv_heads=1"),
    *("model.feed_forward_width=32", "model.width=16", "mesh=single", "tracker=none"),
    *("data.train_size=64", "data.held_out_size=4", "max_response_tokens=8"),
    *("prompts_per_step=8", "group_size=4", "evaluation.every=0", "optimizer.learning_rate=0.02"),
    *("advantage=constant", "rollout.top_k=8", "rollout.top_p=0.9"),
)


def formula(logits_V, temperature, support, drawn):
    """Returns log pi_S(y) = z_y / T - log sum_{v in S} exp(z_v / T) and its slope, in float64."""
    z = np.float64(logits_V) / temperature
    p = np.where(np.isin(np.arange(z.size), support), np.exp(z - z[drawn]), 0)
    slope = ((np.arange(z.size) == drawn) - p / p.sum()) / temperature
    return -np.log(p.sum()), slope


@pytest.mark.parametrize("temperature", [0.5, 1.7])
@pytest.mark.parametrize("annealed", [False, True])
def test_the_score_and_its_slope_are_those_of_the_formula(temperature, annealed):
    """Supports of 1 to 6 tokens, padded to 6; the drawn one is the least, and no favourite now."""
    random = np.random.default_rng(0)
    logits_BV = np.float32(random.normal(0, 3, (6, 40)))
    tokens_BA = np.array([random.permutation(40)[:6] for _ in range(6)], np.int32)
    logprobs_BA = np.where(np.arange(6) <= np.arange(6)[:, None], -1.5, -np.inf)
    drawn_B = np.array(
        [min(tokens_BA[b, : b + 1], key=lambda v: logits_BV[b, v]) for b in range(6)]
    )
    sampling = dataclasses.replace(REPLAYED, temperature=9.0 if annealed else temperature)

    def score(logits_BV):
        support_BV = recorded_support(tokens_BA, jnp.float32(logprobs_BA), 40)
        given = sampling, jnp.int32(drawn_B), jnp.float32(temperature) if annealed else None
        found_BV = sampling_logprobs(logits_BV, *given, support_BV)
        own_B = jnp.take_along_axis(found_BV, drawn_B[:, None], axis=1)[:, 0]
        return own_B.sum(), (own_B, found_BV)

    slope_BV, (own_B, found_BV) = jax.grad(score, has_aux=True)(jnp.asarray(logits_BV))
    for b in range(6):
        support = tokens_BA[b, : b + 1]
        value, slope = formula(logits_BV[b], temperature, support, drawn_B[b])
        np.testing.assert_allclose(own_B[b], value, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(slope_BV[b], slope, rtol=1e-6, atol=1e-6)
        assert set(np.flatnonzero(np.isfinite(found_BV[b]))) == set(support.tolist())
    assert own_B[5] < -2


def test_tokens_that_are_equal_in_the_last_place_are_drawn_only_if_recorded():
    """Five tokens share the third place of top_k=3, one of them as -0.0; ids are recorded."""
    logits_V = np.full(12, -9, np.float32)
    logits_V[[10, 6]] = 2, 1
    logits_V[[0, 3, 5, 7, 11]] = -0.0, 0, 0, 0, 0
    n = 400
    sampling = Sampling(top_k=3, replay_support=True)
    shared = SharedDistribution(sampling=sampling, greedy=False, alternatives=3)
    keys_n = jax.random.split(jax.random.key(0), n)
    arguments = jnp.tile(logits_V, (n, 1)), jnp.ones(n, bool), keys_n, jnp.zeros(n, jnp.int32)
    drawn = jax.jit(lambda *x: shared.draw(*x, 3))(*arguments)
    recorded = np.asarray(drawn.others_BA[0])
    assert recorded[:2].tolist() == [10, 6]
    assert set(np.asarray(drawn.token_B).tolist()) == set(recorded.tolist())
    own = {v: formula(logits_V, 1.0, recorded, v)[0] for v in recorded.tolist()}
    found = [own[v] for v in np.asarray(drawn.token_B).tolist()]
    np.testing.assert_allclose(drawn.logprob_B, found, atol=1e-6)
    np.testing.assert_allclose(drawn.other_logprobs_BA[0], [own[v] for v in recorded], atol=1e-6)


@pytest.fixture(scope="module")
def sampled(policy, params, make_prompt):
    """Two groups that were drawn with other weights, which share their long prompts."""
    random = np.random.default_rng(0)
    prompts = [make_prompt(tuple(random.integers(0, 250, n).tolist()), id=str(n)) for n in (80, 66)]
    older = jax.tree.map(lambda x: x + 0.05 * jnp.sin(jnp.arange(x.size).reshape(x.shape)), params)
    options = {"group_size": 4, "key": jax.random.key(1), "version": 0}
    replaying = dataclasses.replace(SAMPLER, replay_support=True)
    return older, *(x(policy, older, prompts, **options)[0] for x in (replaying, SAMPLER))


@pytest.fixture(scope="module")
def score(policy):
    def score(params, trajectories, sampling, tokens=4096, names=("logprobs", "entropy")):
        microbatching = Microbatching(tokens=tokens, widths=2)
        options = ScoreOptions(
            decoder=policy.decoder, sampling=sampling, microbatching=microbatching, names=names
        )
        return jax.device_get(score_tokens(options, params, trajectories))

    return score


def supports(trajectories):
    """Yields each drawn token's row, column and recorded support."""
    t = jax.device_get(trajectories)
    for b, column in zip(*np.nonzero(t.response_mask_BT), strict=True):
        inside = np.isfinite(t.alternative_logprobs_BTA[b, column])
        yield b, column, t.alternatives_BTA[b, column][inside]


@pytest.mark.slow
def test_moved_weights_have_the_ratio_over_the_support_of_the_sampler(
    policy, params, sampled, score, numpy_logits
):
    older, trajectories, plain = sampled
    np.testing.assert_array_equal(trajectories.tokens_BT, plain.tokens_BT)
    mask = np.asarray(trajectories.response_mask_BT)
    behaviour = np.asarray(trajectories.behaviour_logprobs_BT)
    same = score(older, trajectories, REPLAYED)["logprobs"]
    np.testing.assert_allclose(same, behaviour, atol=1e-5)

    ours, again = (score(params, trajectories, x) for x in (REPLAYED, CUT))
    t, logits = jax.device_get(trajectories), {}
    sizes = []
    for b, column, support in supports(trajectories):
        if b not in logits:
            real = np.flatnonzero(t.segment_ids_BT[b])
            own = numpy_logits(policy.decoder.config, params, t.tokens_BT[b, real])
            logits[b] = dict(zip(real, own, strict=True))
        drawn = t.tokens_BT[b, column]
        assert drawn in support
        sizes.append(len(support))
        z = logits[b][column - 1]
        value, _ = formula(z, T, support, drawn)
        np.testing.assert_allclose(ours["logprobs"][b, column], value, atol=2e-5)
        each = np.array([formula(z, T, support, v)[0] for v in support])
        entropy = -np.sum(np.exp(each) * each)
        np.testing.assert_allclose(ours["entropy"][b, column], entropy, atol=5e-5)
    assert min(sizes) < max(sizes) <= K
    gap = np.abs(ours["logprobs"] - again["logprobs"])[mask]
    assert gap.mean() > 0.02
    assert np.abs(ours["logprobs"] - behaviour)[mask].max() > 0.1  # the weights have moved

    alone = dataclasses.replace(trajectories, group_size=1, prompt_columns=0)
    for rows, tokens in ((trajectories, 100), (alone, 4096), (alone, 100)):
        found = score(params, rows, REPLAYED, tokens)["logprobs"]
        np.testing.assert_allclose(found, ours["logprobs"], atol=1e-5)


@pytest.mark.slow
def test_the_gradient_is_that_of_sums_over_the_recorded_tokens(
    policy, params, sampled, monkeypatch
):
    _, trajectories, _ = sampled
    mask = np.asarray(trajectories.response_mask_BT)
    weights = jnp.asarray(np.where(mask, np.random.default_rng(3).normal(size=mask.shape), 0))
    weights = weights.astype(jnp.float32)

    def ours(params):
        hidden_BTD = trunk(policy.decoder, params, trajectories)
        found = token_scores(policy.decoder, params, hidden_BTD, trajectories, REPLAYED)
        return jnp.sum(weights * found.logprobs_BT)

    def expected(params):
        logits_BTV = policy.decoder.logits(params, trunk(policy.decoder, params, trajectories)) / T
        logits_BTV = jnp.roll(logits_BTV, 1, axis=1)
        own_BTA = jnp.take_along_axis(logits_BTV, trajectories.alternatives_BTA, axis=-1)
        inside_BTA = trajectories.alternative_logprobs_BTA > -jnp.inf
        total_BT = jnp.log(jnp.sum(jnp.where(inside_BTA, jnp.exp(own_BTA), 0), axis=-1))
        drawn_BT = jnp.take_along_axis(logits_BTV, trajectories.tokens_BT[..., None], -1)[..., 0]
        return jnp.sum(jnp.where(mask, weights * (drawn_BT - total_BT), 0))

    wanted_value, wanted = jax.jit(jax.value_and_grad(expected))(params)
    wanted = np.concatenate([np.ravel(x) for x in jax.tree.leaves(wanted)])
    assert np.linalg.norm(wanted) > 1
    for columns in (7, mask.shape[1]):
        monkeypatch.setattr(logprobs, "columns_per_chunk", lambda *_, n=columns: n)
        value, slope = jax.jit(jax.value_and_grad(lambda x: ours(x)))(params)
        slope = np.concatenate([np.ravel(x) for x in jax.tree.leaves(slope)])
        np.testing.assert_allclose(value, wanted_value, rtol=1e-5)
        assert np.linalg.norm(slope - wanted) < 2e-6 * np.linalg.norm(wanted)


@pytest.mark.slow
def test_a_token_that_no_policy_drew_is_scored_over_the_whole_vocabulary(params, sampled, score):
    _, trajectories, _ = sampled
    nobody = dataclasses.replace(
        trajectories, policy_version_BT=trajectories.policy_version_BT.at[1:3].set(-1)
    )
    whole = score(params, trajectories, Sampling(temperature=T))
    replayed, ours = (score(params, x, REPLAYED) for x in (trajectories, nobody))
    for name in whole:
        expected = np.concatenate([replayed[name][:1], whole[name][1:3], replayed[name][3:]])
        np.testing.assert_allclose(ours[name], expected, atol=1e-5)
        assert np.abs(whole[name] - replayed[name])[1:3].max() > 0.1


def test_a_response_to_another_prompt_keeps_the_record_of_its_tokens(make_trajectories):
    random = np.random.default_rng(0)
    trajectories = make_trajectories()
    shape = (*trajectories.tokens_BT.shape, 3)
    trajectories = dataclasses.replace(
        trajectories,
        alternatives_BTA=jnp.asarray(random.integers(0, 256, shape), jnp.int32),
        alternative_logprobs_BTA=jnp.asarray(random.normal(size=shape), jnp.float32),
    )
    moved = mismatched(trajectories, 8)
    names = ("tokens_BT", "policy_version_BT", "alternatives_BTA", "alternative_logprobs_BTA")
    for name in names:
        before, after = (np.asarray(getattr(x, name)) for x in (trajectories, moved))
        np.testing.assert_array_equal(after[1:, 8:], before[:-1, 8:])
        np.testing.assert_array_equal(after[:, :8], before[:, :8])


@pytest.mark.slow
@pytest.mark.mixed_dtypes  # of optax
@pytest.mark.parametrize("words", [(), ("collector=asynchronous", "collector.ahead=1")])
def test_a_run_with_two_updates_in_a_step(words):
    """A recomputed cut has nine tokens where the weights have moved: eight, and the drawn one."""
    runs = {}
    for option in ("true", "false"):
        own = "update.epochs=2", "steps=4", f"rollout.replay_support={option}"
        experiment = build(compose([*RUN, *words, *own]))
        runs[option] = list(train(experiment.loop, experiment.state))
    ours, others = ([info.metrics for info in infos] for infos in runs.values())
    assert all(x["update/grad_norm"] > 0.05 and x["update/approx_kl"] > 1e-3 for x in ours)
    assert all(x["update/entropy"] <= np.log(8) for x in ours)
    assert max(x["update/entropy"] for x in others) > np.log(8)
    gaps = [x["rollout/logprob_gap_max"] for x in ours if "rollout/logprob_gap_max" in x]
    assert len(gaps) == (1 if words else 4)  # the tokens of later steps have earlier weights
    assert max(gaps) < 1e-5
    for info in runs["true"]:
        t = jax.device_get(info.trajectories)
        assert t.alternatives_BTA.shape[2] == 8
        for b, column, support in supports(t):
            assert t.tokens_BT[b, column] in support
            assert len(set(support.tolist())) == len(support)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("rollout.top_k=0", r"replay_support=true cannot act with top_k=0, .* from 2 to 256"),
        ("rollout.top_k=0 rollout.top_p=0.9", "cannot act with top_k=0"),
        ("rollout.top_k=1", "cannot act with top_k=1"),
        ("rollout.top_k=257", "cannot act with top_k=257"),
        ("rollout.top_k=8 rollout.draft_tokens=2", "replay_support=true records no tokens that"),
        ("rollout.top_k=8 rollout.alternatives=4", "alternatives=4 do not go together"),
        ("rollout=naive_sampler rollout.top_k=8", "rollout.replay_support"),
        ("rollout=vllm rollout.servers=[http://127.0.0.1:1]", "rollout.replay_support"),
        ("update=score_centering rollout.top_k=8", "records none"),
    ],
)
def test_what_cannot_act_is_refused(words, sentence):
    with pytest.raises(InputError, match=sentence):
        build_phases(compose([*words.split(), "rollout.replay_support=true"]))


def test_rows_without_the_record_are_refused(params, make_trajectories, score):
    with pytest.raises(RunError, match="not recorded with the tokens that could be drawn"):
        score(params, make_trajectories(), REPLAYED)
