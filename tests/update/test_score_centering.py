"""Tests centered scores against sums over the whole vocabulary in float64, and a run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import TrainingBatch
from rl4p.configuration import compose
from rl4p.learner.correction import Product
from rl4p.learner.gradient_step import forward_backward
from rl4p.learner.logprobs import trunk
from rl4p.learner.optimizer import SGD
from rl4p.loop.loop import train
from rl4p.model.sampling import sampling_logprobs
from rl4p.rollout.continuous import Continuous
from rl4p.runs.build import build, build_phases
from rl4p.update.score_centering import ScoreCentering
from tests.support.losses import built

UPDATE = ScoreCentering()
CAP, LOW, HIGH = 1.2, 0.8, 1.25
CORRECTIONS = {
    "none": (built("correction", "none"), np.ones_like),
    "truncate": (built("correction", "token_truncate", cap=CAP), lambda w: np.minimum(w, CAP)),
    "mask": (
        built("correction", "token_mask", low=LOW, high=HIGH),
        lambda w: np.where((w >= LOW) & (w <= HIGH), w, 0),
    ),
}
RUN = (
    *("model=scratch", "model.layers=1", "model.heads=2", "model.num_kv_heads=1"),
    *("model.feed_forward_width=32", "model.width=16", "mesh=single", "tracker=none"),
    *("data.train_size=64", "data.held_out_size=4", "max_response_tokens=8"),
    *("prompts_per_step=8", "group_size=4", "evaluation.every=0"),
    *("update=score_centering", "rollout.alternatives=5", "advantage=constant"),
)


def softmax(logits):
    scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True)


def expected_slope(logits, sampler, ids, weight):
    """The expected weighted score under the sampler, in the policy's logits: [..., V] in float64.

    It is the sum over the whole vocabulary of q w(p / q) (one-hot - p), where q is the sampler on
    the tokens that it names, and proportional to the policy on all others.
    """
    p, mu = softmax(logits), softmax(sampler)
    named = np.zeros(p.shape, bool)
    np.put_along_axis(named, ids, True, axis=-1)
    rest, own_rest = (np.sum(np.where(named, 0, x), -1, keepdims=True) for x in (mu, p))
    q = np.where(named, mu, p * rest / own_rest)
    weighted = q * weight(p / q)
    return weighted - p * weighted.sum(axis=-1, keepdims=True)


def ours(correction, logits, sampler, ids):
    """The expected score and its slope in the logits."""

    def weigh(log_ratio):
        return correction(log_ratio, jnp.ones(log_ratio.shape, bool))

    def total(logits):
        log_p, log_q = (jax.nn.log_softmax(jnp.asarray(x)) for x in (logits, sampler))
        both = (jnp.take_along_axis(x, ids, axis=-1) for x in (log_p, log_q))
        score = UPDATE.expected_score(*both, weigh)
        return jnp.sum(score), score

    slope, score = jax.grad(total, has_aux=True)(jnp.asarray(logits))
    return np.asarray(score), np.asarray(slope)


@pytest.fixture(scope="module")
def logits():
    """Logits [4, 5, 30] of the policy and of a sampler near it, and its 6 most probable tokens."""
    random = np.random.default_rng(0)
    policy = random.normal(0, 1.5, (4, 5, 30))
    sampler = policy + random.normal(0, 0.3, policy.shape)
    return policy, sampler, np.argsort(-sampler, axis=-1)[..., :6]


def test_the_yaml_has_the_defaults_of_the_class():
    assert built("update", "score_centering") == UPDATE


@pytest.mark.parametrize("name", CORRECTIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
def test_the_slope_is_the_expected_score_over_the_whole_vocabulary(logits, name, dtype, tolerance):
    policy, sampler, ids = logits
    correction, weight = CORRECTIONS[name]
    expected = expected_slope(policy, sampler, ids, weight)
    assert np.abs(expected).max() > 0.02
    with jax.enable_x64(dtype == "float64"):
        _, slope = ours(correction, policy.astype(dtype), sampler.astype(dtype), ids)
    np.testing.assert_allclose(slope, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("correction", "factors"),
    [
        (built("correction", "none"), (5 / 16, -1 / 16)),
        (built("correction", "token_truncate", cap=1.0), (1 / 16, -1 / 16)),
    ],
)
def test_the_factors_of_two_tokens_by_hand(correction, factors):
    """The policy has 1/4 on each token. The sampler has 1/2 and 1/8 on the two that are named.

    alpha is 3/8 over 1/2, so the factors are 1/2 - 3/16 and 1/8 - 3/16. With a cap of 1, w is 1/2
    on the first token and 1 on the others: 1/4 - 3/16 and 1/8 - 3/16.
    """
    sampler = np.float32(np.log([1 / 2, 1 / 8, 3 / 16, 3 / 16]))
    score, slope = ours(correction, np.zeros(4, np.float32), sampler, np.array([0, 1]))
    total = sum(factors)
    np.testing.assert_allclose(score, total * np.log(1 / 4), atol=1e-6)
    expected = np.array([*factors, 0, 0]) - total / 4
    np.testing.assert_allclose(slope, expected, atol=1e-6)


@pytest.mark.parametrize("name", CORRECTIONS)
def test_the_score_that_the_sampler_expects_is_gone(logits, name):
    """The mean over drawn tokens of w grad log pi, less the slope, is 0 if all tokens are named."""
    policy, sampler, _ = logits
    correction, weight = CORRECTIONS[name]
    ids = np.broadcast_to(np.arange(30), policy.shape)
    with jax.enable_x64(True):
        _, slope = ours(correction, policy, sampler, ids)
    p, q = softmax(policy), softmax(sampler)
    mean = sum(
        (q * weight(p / q))[..., v, None] * (np.eye(30)[v] - p) for v in range(policy.shape[-1])
    )
    np.testing.assert_allclose(mean, slope, atol=1e-12)
    assert name == "none" or np.abs(slope).max() > 0.01


def test_a_sampler_that_agrees_changes_nothing(logits):
    policy, _, ids = logits
    _, slope = ours(CORRECTIONS["none"][0], np.float32(policy), np.float32(policy) + 0.5, ids)
    np.testing.assert_allclose(slope, 0, atol=1e-6)


def test_tokens_outside_a_support_add_nothing():
    """One token is outside the policy's support, and one outside the sampler's."""
    policy, sampler = (
        np.float32([0, 1, -np.inf, 2, 0]),
        np.float32([0, 1.5, 1, -np.inf, 0]),
    )
    score, slope = ours(CORRECTIONS["truncate"][0], policy, sampler, np.array([0, 1, 2, 3]))
    assert np.isfinite(score)
    assert np.isfinite(slope).all()
    assert slope[2] == 0
    assert np.abs(slope).max() > 0.04


@pytest.fixture(scope="module")
def sampled(policy, params, make_prompt):
    """Two groups that were drawn with other weights, and the update's arguments."""
    random = np.random.default_rng(0)
    prompts = [make_prompt(tuple(random.integers(0, 250, n).tolist()), id=str(n)) for n in (80, 66)]
    sampler = Continuous(max_response_tokens=12, slots=3, alternatives=7, temperature=0.8)
    older = jax.tree.map(lambda x: x + 0.1 * jnp.sin(jnp.arange(x.size).reshape(x.shape)), params)
    options = {"group_size": 4, "key": jax.random.key(1), "version": 0}
    trajectories, _ = sampler(policy, older, prompts, **options)
    return older, sampler, trajectories


@pytest.mark.slow
def test_rows_with_a_distribution_of_their_own_record_nothing(policy, params, make_prompt):
    sampler = Continuous(max_response_tokens=4, slots=2, alternatives=7, repetition_penalty=1.2)
    options = {"group_size": 2, "key": jax.random.key(1), "version": 0}
    trajectories, _ = sampler(policy, params, [make_prompt((1, 2, 3))], **options)
    assert trajectories.alternatives_BTA is None


@pytest.mark.slow
def test_the_record_has_the_most_probable_tokens_of_the_sampler(policy, sampled):
    older, sampler, trajectories = sampled
    hidden_BTD = trunk(policy.decoder, older, trajectories)
    logits_BTV = policy.decoder.logits(older, hidden_BTD)
    logprobs_BTV = np.asarray(sampling_logprobs(logits_BTV, sampler.sampling))
    mask = np.asarray(trajectories.response_mask_BT)
    ids_BTA = np.asarray(trajectories.alternatives_BTA)
    values_BTA = np.asarray(trajectories.alternative_logprobs_BTA)
    assert mask.sum() > 40
    for b, t in zip(*np.nonzero(mask), strict=True):
        best = np.argsort(-logprobs_BTV[b, t - 1], kind="stable")[:7]
        np.testing.assert_allclose(values_BTA[b, t], logprobs_BTV[b, t - 1, best], atol=2e-5)
        np.testing.assert_allclose(
            logprobs_BTV[b, t - 1, ids_BTA[b, t]], values_BTA[b, t], atol=2e-5
        )
        at = np.flatnonzero(ids_BTA[b, t] == trajectories.tokens_BT[b, t])
        if len(at):
            drawn = trajectories.behaviour_logprobs_BT[b, t]
            np.testing.assert_allclose(values_BTA[b, t, at[0]], drawn, atol=1e-5)


# Compiling an update takes seconds. The product has a weight of tokens and one of sequences.
@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["product", *(pytest.param(x, marks=pytest.mark.slow) for x in CORRECTIONS)]
)
def test_the_gradient_is_that_of_sums_over_the_vocabulary(
    policy, params, sampled, make_phases, make_state, name
):
    """Through shared prompts and microbatches, beside a loss that sums over all tokens."""
    _, sampler, trajectories = sampled
    mask = np.asarray(trajectories.response_mask_BT)
    random = np.random.default_rng(3)
    advantages = jnp.asarray(np.where(mask, random.normal(1, 1, mask.shape), 0), jnp.float32)
    # The tokens of one row were not drawn by a policy.
    versions = np.array(trajectories.policy_version_BT)
    versions[1] = -1
    trajectories = dataclasses.replace(trajectories, policy_version_BT=jnp.asarray(versions))
    if name == "product":
        sequences = built("correction", "sequence_mask", low=0.97, high=1.2)
        parts = {"token": CORRECTIONS["truncate"][0], "sequence": sequences}
        correction = Product(parts=parts)
    else:
        correction, sequences = CORRECTIONS[name][0], None
    token = CORRECTIONS["truncate" if name == "product" else name][0]
    update = dataclasses.replace(UPDATE, tokens_per_microbatch=200)
    phases = make_phases(update=update, rollout=sampler, correction=correction)
    batch = TrainingBatch(
        trajectories=trajectories, advantages_BT=advantages, loss_mask_BT=mask, scores={}
    )
    state = make_state(params, SGD(learning_rate=0.0))
    gradient = forward_backward(phases.objective(policy, 4), {}, state, batch, {})

    def loss(params):
        hidden_BTD = trunk(policy.decoder, params, trajectories)
        logits_BTV = policy.decoder.logits(params, hidden_BTD)
        logprobs_BTV = jnp.roll(sampling_logprobs(logits_BTV, sampler.sampling), 1, axis=1)
        constant_BTV = jax.lax.stop_gradient(logprobs_BTV)
        own_BT, constant_BT = (
            jnp.take_along_axis(x, trajectories.tokens_BT[..., None], axis=-1)[..., 0]
            for x in (logprobs_BTV, constant_BTV)
        )
        # The sampler over the vocabulary: its record, and a share of the policy elsewhere.
        b, t = np.indices(mask.shape)
        place = b[..., None], t[..., None], trajectories.alternatives_BTA
        named = jnp.zeros(constant_BTV.shape, bool).at[place].set(True)
        q_BTV = (
            jnp.zeros(constant_BTV.shape)
            .at[place]
            .set(jnp.exp(trajectories.alternative_logprobs_BTA))
        )
        p_BTV = jnp.exp(constant_BTV)
        rest = (1 - q_BTV.sum(-1)) / jnp.where(named, 0, p_BTV).sum(-1)
        q_BTV = jnp.where(named, q_BTV, rest[..., None] * p_BTV)
        everywhere = jnp.ones(q_BTV.shape, bool)
        weights_BTV = q_BTV * token(jnp.log(p_BTV) - jnp.log(q_BTV), everywhere)
        drawn = mask & (versions >= 0)
        center_BT = jnp.where(drawn, jnp.sum(weights_BTV * logprobs_BTV, -1), 0)
        ratio_BT = jnp.where(drawn, constant_BT - trajectories.behaviour_logprobs_BT, 0)
        loss_BT = -advantages * (token(ratio_BT, mask) * own_BT - center_BT)
        if sequences is not None:
            loss_BT = loss_BT * sequences(ratio_BT, mask)
        return jnp.sum(jnp.where(mask, loss_BT, 0)) / int(mask.sum())

    expected = jax.jit(jax.grad(loss))(params)
    found, wanted = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])
        for tree in (gradient.params, expected)
    )
    assert np.linalg.norm(wanted) > 1e-2
    assert np.linalg.norm(found - wanted) < 1e-5 * np.linalg.norm(wanted)


@pytest.mark.slow
@pytest.mark.mixed_dtypes  # of optax
def test_a_run_with_an_older_sampler_in_bfloat16():
    """The rows of a step keep the record while they wait, and the gap is that of bfloat16."""
    words = "collector=asynchronous", "collector.ahead=1", "steps=3", "rollout.dtype=bfloat16"
    experiment = build(compose([*RUN, *words]))
    metrics = [info.metrics for info in train(experiment.loop, experiment.state)]
    assert all(x["update/grad_norm"] > 1e-3 for x in metrics)
    assert 1e-5 < metrics[0]["rollout/logprob_gap_mean"] < 0.05


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("update=score_centering", "but rollout=continuous records none: set rollout.alternatives"),
        ("update=score_centering rollout=naive_sampler", "but rollout=naive_sampler records none"),
        ("rollout.alternatives=8", "no effect, because update=ppo does not center scores"),
        (
            "update=score_centering rollout.alternatives=8 rollout.top_p=0.9",
            r"whole distribution, which rollout.top_p cuts",
        ),
        ("rollout.alternatives=8 rollout.draft_tokens=2", "no tokens that were drafted"),
    ],
)
def test_what_cannot_act_is_refused(words, sentence):
    with pytest.raises(InputError, match=sentence):
        build_phases(compose(words.split()))


def test_rows_without_the_record_are_refused(policy, params, sampled, make_phases, make_state):
    _, sampler, trajectories = sampled
    bare = dataclasses.replace(trajectories, alternatives_BTA=None)
    nothing = jnp.zeros(bare.tokens_BT.shape)
    batch = TrainingBatch(
        trajectories=bare, advantages_BT=nothing, loss_mask_BT=nothing > 0, scores={}
    )
    objective = make_phases(update=UPDATE, rollout=sampler).objective(policy, 4)
    state = make_state(params, SGD(learning_rate=0.0))
    with pytest.raises(RunError, match="not recorded with the sampler's most probable tokens"):
        forward_backward(objective, {}, state, batch, {})
