"""Tests of the whole update: forward, loss, further terms, microbatches, gradient.

The losses are all files of conf/update; that with a teacher is in a combination. The combinations
have every option of conf/correction, conf/kl, conf/entropy and conf/critic. A new file is tested
automatically, or a test reports that it is missing. Every program is compiled once and cached, with
few of XLA's optimizations, because compilation dominates the time of this file. It is one file
because all tests share these programs.
"""

import dataclasses
import pickle
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.advantage.gae import GAE
from rl4p.base.types import Microbatching, Sampling, TrainingBatch
from rl4p.distributed.mesh import Mesh
from rl4p.learner.correction import Product, correction_weights
from rl4p.learner.gradient_step import gradient_step
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.learner.optimizer import SGD
from rl4p.learner.update_options import aggregation_weights
from rl4p.rollout.naive_sampler import NaiveSampler
from tests.support.losses import (
    CONF,
    CONSTANT_WEIGHT,
    LOSSES,
    NAMES,
    NOT_REINFORCE,
    NOT_STILL,
    built,
)

B, T = 8, 16
SAMPLING = Sampling(temperature=0.7)
OPTIMIZER = SGD(learning_rate=0.0, momentum=0.5, max_grad_norm=0.0)  # its trace is the gradient
COEFFICIENTS = {"kl": np.float32(0.3), "entropy": np.float32(0.2)}
QUICK = {"xla_backend_optimization_level": 0}
# The rows of a pair are not neighbours. Row 2 has no response; row 5, of its group, is invalid.
GROUPS = (3, 1, 0, 2, 3, 0, 2, 1)
INVALID = 5

# Corrections and other terms of the loss, with limits between the values of the samples.
COMBINATIONS = {
    "ppo, token_truncate, kl fixed, entropy bonus": {
        "update": built("update", "ppo"),
        "correction": built("correction", "token_truncate", cap=1.05),
        "kl": built("kl", "fixed", estimator="k3_plus", importance_weight=True),
        "entropy": built("entropy", "bonus"),
    },
    "cispo, token_mask, top_tokens": {
        "update": built("update", "cispo"),
        "correction": built("correction", "token_mask", low=0.9, high=1.1),
        "entropy": built("entropy", "top_tokens", share=0.5),
    },
    "dpo, sequence_truncate, kl adaptive, entropy adaptive": {
        "update": built("update", "dpo"),
        "correction": built("correction", "sequence_truncate", cap=1.05),
        "kl": built("kl", "adaptive"),
        "entropy": built("entropy", "adaptive"),
    },
    "m2po, sequence_mask, critic shared, kl fixed": {
        "update": built("update", "m2po"),
        "correction": built("correction", "sequence_mask", low=0.9, high=1.1, weighted=True),
        "kl": built("kl", "fixed", importance_weight=True),
        "critic": built("critic", "shared"),
    },
    "reinforce, off_policy_mask, critic separate, top_tokens": {
        "update": built("update", "reinforce"),
        "correction": built("correction", "off_policy_mask", threshold=0.0),
        "entropy": built("entropy", "top_tokens"),
        "critic": built("critic", "separate"),
    },
    "gkd, product, kl fixed, entropy bonus": {
        "update": built("update", "gkd", beta=0.3),
        "correction": Product(
            parts={
                "weight": built("correction", "token_truncate", cap=1.05),
                "bad": built("correction", "off_policy_mask", threshold=0.0),
            }
        ),
        "kl": built("kl", "fixed", against="behaviour"),
        "entropy": built("entropy", "bonus"),
    },
}
CASES = {name: {"update": LOSSES[name]} for name in NAMES} | COMBINATIONS
# In these losses the loss of a token depends on other tokens of its sequence or pair.
OF_SEQUENCES = {"dpo", "dro", "gmpo", "gspo", "kimi", "kto", "luspo", "vespo"}
ON_DEVICES = [x for x in COMBINATIONS if x.startswith(("dpo", "gkd", "m2po"))]

# Compiling an update takes seconds. These cases always run, all others with `make slow`.
ALWAYS = {"gspo", *COMBINATIONS}


def cases(always):
    marks = {x: () if x in always else pytest.mark.slow for x in CASES}
    return pytest.mark.parametrize("name", [pytest.param(x, marks=marks[x]) for x in CASES])


every_case, some_cases = cases(ALWAYS), cases([x for x in COMBINATIONS if "token_mask, top" in x])


def losses(*left_out):
    kept = [x for x in NAMES if x not in set().union(*left_out)]
    marks = {x: () if x in ALWAYS else pytest.mark.slow for x in kept}
    return pytest.mark.parametrize("name", [pytest.param(x, marks=marks[x]) for x in kept])


@pytest.mark.parametrize("group", ["correction", "kl", "entropy", "critic"])
def test_every_option_of_what_joins_a_loss_is_in_a_combination(group):
    there = {path.stem.replace("_", "") for path in (CONF / group).glob("*.yaml")} - {"none"}
    used = [type(phases[group]) for phases in COMBINATIONS.values() if group in phases]
    assert {cls.__name__.casefold() for cls in used} == there
    assert {cls.__module__ for cls in used} == {f"rl4p.learner.{group}"}


@pytest.fixture(scope="module")
def scored(policy, params, make_trajectories):
    """Returns the rows, and their scores under the policy."""
    trajectories = make_trajectories(group_ids=GROUPS)
    options = ScoreOptions(
        decoder=policy.decoder,
        sampling=SAMPLING,
        microbatching=Microbatching(tokens=B * T),
        names=("entropy", "logprobs"),
    )
    return trajectories, score_tokens(options, params, trajectories)


@pytest.fixture(scope="module")
def numbers(scored):
    """Returns all arrays of any case; sampler, reference and start of the step differ slightly."""
    scores, random = jax.device_get(scored[1]), np.random.default_rng(0)

    def near(x_BT, scale):
        return np.float32(x_BT + random.normal(0, scale, (B, T)))

    proximal = near(scores["logprobs"], 0.1)
    signs = np.float32([1, -1, 1, 1, -1, -1, -1, 1])[:, None]
    return {
        "behaviour": near(proximal, 0.1),
        "advantages": signs * near(1.0, 0.3),
        "proximal_logprobs": proximal,
        "reference_logprobs": near(scores["logprobs"], 0.3),
        "entropy": scores["entropy"],
        "values": near(0.0, 0.5),
        "returns": near(1.0, 1.0),
        "mismatched_log_ratios": near(0.2, 0.3),
    }


@pytest.fixture(scope="module")
def teacher(policy):
    """Another model, with more rows in its embedding; far enough from uniform to matter."""
    config = dataclasses.replace(policy.decoder.config, vocabulary=272, feed_forward_width=40)
    decoder = dataclasses.replace(policy.decoder, config=config)
    start = decoder.init(jax.random.key(7))
    return decoder, start | {"embedding": 10 * start["embedding"]}


def beside(objective, teacher):
    """Returns the parameters that are not trained."""
    return {} if objective.teacher is None else {"teacher": teacher[1]}


@pytest.fixture(scope="module")
def build(policy, params, make_phases, make_trajectories, numbers, teacher):
    """Returns a function that builds objective, parameters and batch with the needed scores."""

    def build(name, *, left=0, right=0, outside=0.0, **changes):
        """Adds `left` and `right` columns of padding, and sets `outside` where no loss is."""
        advantage = GAE() if "critic" in CASES[name] else None
        rollout = SimpleNamespace(sampling=SAMPLING)
        phases = make_phases(advantage=advantage, rollout=rollout, **CASES[name])
        trajectories = make_trajectories(group_ids=GROUPS, left=left, right=right)
        valid = (np.arange(B) != INVALID)[:, None]
        mask = np.asarray(trajectories.response_mask_BT) & valid
        columns = ((0, 0), (left, right))
        filled = {
            key: np.where(mask, np.pad(x, columns), np.float32(outside))
            for key, x in (numbers | changes).items()
        }
        wanted = {*phases.needs(), "proximal_logprobs"}
        wanted |= {"returns"} if phases.critic.active else set()
        trajectories = dataclasses.replace(trajectories, behaviour_logprobs_BT=filled["behaviour"])
        trained = dict(params)
        if phases.critic.active:
            trained["critic"] = with_values(phases.critic.init(policy.decoder, params))
        batch = TrainingBatch(
            trajectories=trajectories,
            advantages_BT=filled["advantages"],
            loss_mask_BT=mask,
            scores={key: filled[key] for key in sorted(wanted)},
        )
        objective = phases.objective(policy, 2, teacher)
        return objective, trained, jax.device_get(batch)

    return build


def with_values(critic):
    """Returns a critic with a head that is not 0, so that its trunk has a gradient."""
    head = np.random.default_rng(5).normal(0, 0.3, critic["value"]["kernel"].shape)
    return critic | {"value": critic["value"] | {"kernel": jnp.asarray(head, jnp.float32)}}


@pytest.fixture(scope="module")
def step(policy, make_state, teacher):
    """Returns a function that computes gradient and metrics, with `rows` rows per microbatch."""
    programs = {}

    def step(objective, params, batch, rows=B):
        tokens = rows * batch.loss_mask_BT.shape[1]
        update = dataclasses.replace(objective.update, tokens_per_microbatch=tokens)
        objective = dataclasses.replace(objective, update=update)
        state, frozen = make_state(params, OPTIMIZER), beside(objective, teacher)
        key = (objective, batch.loss_mask_BT.shape, *batch.scores)
        if key not in programs:
            programs[key] = gradient_step.lower(
                objective, OPTIMIZER, frozen, state, batch, COEFFICIENTS
            ).compile(compiler_options=QUICK)
        return read(*programs[key](frozen, state, batch, COEFFICIENTS))

    return step


def read(state, metrics):
    leaves = jax.device_get(jax.tree.leaves(state.optimizer_state))
    gradient = np.concatenate([leaf.ravel() for leaf in leaves])
    return gradient, {name: float(x) for name, x in metrics.items()}


@pytest.fixture(scope="module")
def plain(build, step):
    """Returns a function for the reference update: one microbatch and no extra padding."""
    found = {}

    def plain(name):
        if name not in found:
            found[name] = step(*build(name))
            gradient, metrics = found[name]
            assert np.linalg.norm(gradient) > 1e-3
            assert np.isfinite(list(metrics.values())).all()
        return found[name]

    return plain


def assert_same_update(ours, wanted, tolerance=2e-6):
    (gradient, metrics), (expected, expected_metrics) = ours, wanted
    assert np.linalg.norm(gradient - expected) <= tolerance * np.linalg.norm(expected)
    assert metrics == pytest.approx(expected_metrics, rel=1e-5, abs=1e-6)


def reordered(batch):
    """Returns the batch with its rows in another order and with other group ids."""
    batch = jax.tree.map(lambda x: x[np.random.default_rng(1).permutation(B)], batch)
    groups = np.int32([6, 0, 5, 3])[batch.trajectories.group_ids_B]
    trajectories = dataclasses.replace(batch.trajectories, group_ids_B=groups)
    return dataclasses.replace(batch, trajectories=trajectories)


@pytest.mark.slow
@every_case
def test_the_order_of_rows_and_the_names_of_groups_change_nothing(build, step, plain, name):
    objective, params, batch = build(name)
    assert_same_update(step(objective, params, reordered(batch)), plain(name))


@pytest.mark.slow
@some_cases
def test_padding_on_both_sides_and_microbatches_change_nothing(build, step, plain, name):
    """Runs four microbatches. The slow tests change one of these properties at a time."""
    objective, params, batch = build(name, left=3, right=5)
    assert_same_update(step(objective, params, reordered(batch), rows=2), plain(name))


@pytest.mark.slow
@every_case
@pytest.mark.parametrize("rows", [4, 3, 2, 1])
def test_microbatches_change_nothing(build, step, plain, name, rows):
    """Runs 2, 3, 4 and 8 of them, or one per pair if pairs stay together."""
    assert_same_update(step(*build(name), rows=rows), plain(name))


@pytest.mark.slow
@every_case
@pytest.mark.parametrize("padding", [{"left": 8}, {"right": 8}])
def test_padding_changes_nothing(build, step, plain, name, padding):
    assert_same_update(step(*build(name, **padding)), plain(name))


@pytest.mark.slow
@every_case
def test_nothing_without_a_loss_matters(build, step, plain, name):
    """No token of row 2 (an empty response) or of row INVALID (an invalid sample) has a loss."""
    objective, params, batch = build(name, outside=np.nan)
    tokens = batch.trajectories.tokens_BT.copy()
    tokens[[2, INVALID]] = np.random.default_rng(3).integers(0, 256, (2, T), np.int32)
    trajectories = dataclasses.replace(batch.trajectories, tokens_BT=tokens)
    batch = dataclasses.replace(batch, trajectories=trajectories)
    assert_same_update(step(objective, params, batch), plain(name))


@every_case
def test_without_a_single_loss_token_the_gradient_is_exactly_zero(build, step, name):
    objective, params, batch = build(name)
    batch = dataclasses.replace(batch, loss_mask_BT=np.zeros((B, T), bool))
    gradient, metrics = step(objective, params, batch)
    np.testing.assert_array_equal(gradient, 0)
    assert np.isfinite(list(metrics.values())).all()


@losses(NOT_STILL)
def test_without_advantages_the_gradient_is_exactly_zero(build, step, name):
    gradient, metrics = step(*build(name, advantages=np.zeros((B, T), np.float32)))
    np.testing.assert_array_equal(gradient, 0)
    assert np.isfinite(list(metrics.values())).all()


@losses(NOT_REINFORCE)
def test_at_ratio_one_the_gradient_is_that_of_reinforce(build, step, numbers, scored, name):
    assert_reinforce(build, step, numbers, scored, name)


@pytest.mark.slow
@losses(NOT_REINFORCE)
def test_without_old_logprobs_the_gradient_is_that_of_reinforce(build, step, numbers, scored, name):
    """On-policy: log-probabilities at the start of the step are not computed if not needed."""
    assert_reinforce(build, step, numbers, scored, name, left_out={"proximal_logprobs"})


def assert_reinforce(build, step, numbers, scored, name, left_out=frozenset()):
    """Advantages are constant in a row, since a ratio of the whole row would average them."""
    same = np.asarray(scored[1]["logprobs"])
    changes = dict.fromkeys(("behaviour", "proximal_logprobs", "reference_logprobs"), same)
    changes["advantages"] = np.repeat(numbers["advantages"][:, 8:9], T, axis=1)
    objective, params, batch = build(name, **changes)
    update = dataclasses.replace(LOSSES["reinforce"], aggregation=objective.update.aggregation)
    reinforce, _, plain_batch = build("reinforce", **changes)
    expected, _ = step(dataclasses.replace(reinforce, update=update), params, plain_batch)
    unasked = left_out - objective.update.needs
    scores = {key: x for key, x in batch.scores.items() if key not in unasked}
    gradient, _ = step(objective, params, dataclasses.replace(batch, scores=scores))
    assert np.linalg.norm(expected) > 1e-3
    assert np.linalg.norm(gradient - expected) <= 1e-5 * np.linalg.norm(expected)


@pytest.fixture(scope="module")
def oracle(policy, scored, numpy_logits, teacher):
    """Returns a function that computes the numbers of all tokens in float64.

    They are logprobs, entropies, values, and the divergences of the combination with a teacher.
    """
    config, trajectories = policy.decoder.config, jax.device_get(scored[0])

    def logits_of(params, config=config):
        rows = [np.flatnonzero(segments) for segments in trajectories.segment_ids_BT]
        pairs = zip(trajectories.tokens_BT, rows, strict=True)
        return [(row, numpy_logits(config, params, tokens[row])) for tokens, row in pairs]

    def normalised(logits):
        scores = logits[:, : config.vocabulary] / SAMPLING.temperature
        return scores - np.log(np.sum(np.exp(scores), axis=1, keepdims=True))

    of_teacher = logits_of(jax.device_get(teacher[1]), teacher[0].config)
    of_teacher = [np.exp(normalised(logits)) for _, logits in of_teacher]

    def oracle(params):
        logprobs_BT, entropy_BT, values_BT, divergence_BT = np.zeros((4, B, T))
        for b, (row, logits) in enumerate(logits_of(params)):
            scores = normalised(logits)
            tokens = trajectories.tokens_BT[b, row[1:]]
            logprobs_BT[b, row[1:]] = scores[np.arange(len(tokens)), tokens]
            entropy_BT[b, row[1:]] = -np.sum(np.exp(scores) * scores, axis=1)[:-1]
            p, q = of_teacher[b], np.exp(scores)
            mixture = 0.3 * p + 0.7 * q
            divergences = 0.3 * p * np.log(p / mixture) + 0.7 * q * np.log(q / mixture)
            divergence_BT[b, row[1:]] = np.sum(divergences, axis=1)[:-1]
        if "critic" in params:
            trunk = params | params["critic"]
            for b, (row, logits) in enumerate(logits_of(trunk)):
                # The logits are linear in the activations.
                hidden = np.linalg.lstsq(trunk["embedding"], logits.T)[0].T
                values = hidden @ trunk["value"]["kernel"] + trunk["value"]["bias"]
                values_BT[b, row[1:]] = values[:-1]
        return logprobs_BT, entropy_BT, values_BT, divergence_BT

    return oracle


@pytest.fixture(scope="module")
def differences(oracle):
    """Returns the oracle's output, and its changes along random directions of the parameters."""

    def differences(params):
        params = jax.tree.map(np.float64, jax.device_get(params))
        random, changes = np.random.default_rng(4), []
        for _ in range(2):
            direction = jax.tree.map(lambda x: random.normal(0, 1e-5, x.shape), params)
            up, down = (
                oracle(jax.tree.map(lambda x, d, sign=sign: x + sign * d, params, direction))
                for sign in (1, -1)
            )
            leaves = [leaf.ravel() for leaf in jax.tree.leaves(direction)]
            changes.append((np.concatenate(leaves), up, down))
        return oracle(params), changes

    return differences


def wide(batch):
    return jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float64 if x.dtype == np.float32 else x.dtype), batch
    )


@losses()
def test_the_gradient_is_that_of_finite_differences_in_float64(
    build, plain, differences, evaluate, name
):
    """Compares with central differences of the loss.

    If a token's weight is a constant to the gradient, the differences are those of the
    log-probabilities, times the slope of the loss.
    """
    gradient, metrics = plain(name)
    objective, params, batch = build(name)
    (logprobs, *_), changes = differences(params)
    with jax.enable_x64(True):

        def loss(logprobs):
            return evaluate(objective.update, logprobs, wide(batch), weighted=True)[0].sum()

        slope_BT = evaluate(objective.update, logprobs, wide(batch), weighted=True)[2]
        assert metrics["update/loss"] == pytest.approx(loss(logprobs), rel=1e-4)
        for direction, (up, *_), (down, *_) in changes:
            change = loss(up) - loss(down)
            if name in CONSTANT_WEIGHT:
                change = np.sum(slope_BT * (up - down))
            # The derivative along a random direction.
            scale = np.linalg.norm(gradient) * 1e-5
            assert abs(np.sum(gradient * direction) - change / 2) < 1e-4 * scale


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", COMBINATIONS)
def test_what_joins_a_loss_is_added_to_it(build, plain, differences, name):
    """The sum is weight x loss + beta KL - alpha H + the critic's loss, in float64."""
    gradient, metrics = plain(name)
    objective, params, batch = build(name)
    seen, changes = differences(params)

    def total(logprobs_BT, entropy_BT, values_BT, divergence_BT):
        ours, mask = wide(batch), batch.loss_mask_BT
        scores = ours.scores | {"divergence": divergence_BT}
        behaviour_BT = ours.trajectories.behaviour_logprobs_BT
        if hasattr(objective.update, "prepare"):
            scores = scores | objective.update.prepare(ours)
        logprobs_BT = jnp.where(mask, logprobs_BT, 0.0)
        loss_BT, _ = objective.update(logprobs_BT, dataclasses.replace(ours, scores=scores))
        log_ratio_BT = scores["proximal_logprobs"] - behaviour_BT
        constant_BT = jax.lax.stop_gradient(logprobs_BT)
        loss_BT *= correction_weights(objective.correction, log_ratio_BT, constant_BT, ours)
        if "entropy" in scores:
            loss_BT *= objective.entropy.select(scores["entropy"], mask).astype(float)
        if objective.kl.active:
            penalty = (logprobs_BT, scores.get("reference_logprobs", behaviour_BT), behaviour_BT)
            loss_BT += 0.3 * objective.kl.penalty(*penalty)
        if objective.entropy.active:
            loss_BT -= 0.2 * entropy_BT
        if objective.critic.active:
            loss_BT += objective.critic.loss(values_BT, scores["values"], scores["returns"])
        weights_BT = aggregation_weights(mask, objective.update.aggregation, 1).astype(float)
        return jnp.sum(jnp.where(mask, weights_BT * loss_BT, 0.0))

    with jax.enable_x64(True):
        values = jax.value_and_grad(total, argnums=(0, 1, 2, 3))(*map(jnp.asarray, seen))
        loss, slopes = jax.device_get(values)
    assert metrics["update/loss"] == pytest.approx(loss, rel=1e-4)
    for direction, up, down in changes:
        change = sum(np.sum(s * (x - y)) for s, x, y in zip(slopes, up, down, strict=True))
        scale = np.linalg.norm(gradient) * 1e-5
        assert abs(np.sum(gradient * direction) - change / 2) < 1e-4 * scale


def packed(batch):
    """Returns two rows in one, with different segment ids and their own positions."""
    batch = jax.tree.map(lambda x: x.reshape(B // 2, 2 * T) if x.ndim == 2 else x[::2], batch)
    segments = batch.trajectories.segment_ids_BT.copy()
    segments[:, T:] *= 2
    trajectories = dataclasses.replace(batch.trajectories, segment_ids_BT=segments)
    return dataclasses.replace(batch, trajectories=trajectories)


@pytest.fixture(scope="module")
def packed_logprobs(policy, params, scored):
    """Splits the logprobs of two packed rows into two rows."""
    nothing = np.zeros((B, T), np.float32)
    batch = TrainingBatch(
        trajectories=jax.device_get(scored[0]),
        advantages_BT=nothing,
        loss_mask_BT=nothing,
        scores={},
    )
    trajectories = packed(batch).trajectories
    options = ScoreOptions(
        decoder=policy.decoder, sampling=SAMPLING, microbatching=Microbatching(tokens=B * T)
    )
    return np.asarray(score_tokens(options, params, trajectories)["logprobs"]).reshape(B, T)


@pytest.mark.slow
def test_packed_sequences_have_the_scores_of_padded_ones(scored, packed_logprobs):
    trajectories, scores = jax.device_get(scored)
    mask = trajectories.response_mask_BT
    np.testing.assert_allclose(packed_logprobs[mask], scores["logprobs"][mask], rtol=1e-5)


@losses(OF_SEQUENCES)
def test_packed_sequences_have_the_token_losses_of_padded_ones(
    build, scored, packed_logprobs, evaluate, name
):
    objective, _, batch = build(name)
    wanted = evaluate(objective.update, scored[1]["logprobs"], batch)
    logprobs = packed_logprobs.reshape(B // 2, 2 * T)
    ours = evaluate(objective.update, logprobs, jax.tree.map(jnp.asarray, packed(batch)))
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(x.reshape(B, T), y, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_sampled_tokens_are_scored_as_they_were_drawn(policy, params, prompts):
    """Both sides have the temperature in the logits."""
    sampler = NaiveSampler(max_response_tokens=8, temperature=0.7)
    options = {"group_size": 2, "key": jax.random.key(2), "version": 0}
    trajectories, _ = sampler(policy, params, prompts, **options)
    mask = np.asarray(trajectories.response_mask_BT)
    options = ScoreOptions(
        decoder=policy.decoder,
        sampling=sampler.sampling,
        microbatching=Microbatching(tokens=trajectories.tokens_BT.size),
    )
    drawn = np.asarray(trajectories.behaviour_logprobs_BT)[mask]
    for sampling, same in ((sampler.sampling, True), (Sampling(), False)):
        own = dataclasses.replace(options, sampling=sampling)
        scores = score_tokens(own, params, trajectories)
        logprobs = np.asarray(scores["logprobs"])[mask]
        assert np.allclose(logprobs, drawn, rtol=0, atol=1e-4) == same


# Reads the arguments of programs, and writes gradients and metrics by name.
EIGHT_DEVICES = """
import pickle, sys, jax, numpy as np
from dataclasses import replace
from rl4p.distributed.mesh import Mesh
from rl4p.base.types import TrainState
from rl4p.learner.update_options import aggregation_weights
from rl4p.learner.correction import Product, correction_weights
from rl4p.learner.gradient_step import gradient_step

cases, optimizer, coefficients, options = pickle.load(sys.stdin.buffer)
mesh, updates = Mesh(dp=8), {}
for name, (objective, params, batch, frozen) in cases.items():
    state = TrainState(
        step=np.int32(0), params=params, optimizer_state=optimizer.transform().init(params),
        key=jax.random.key(1), memory={},
    )
    state, frozen, batch = *mesh.replicate((state, frozen)), mesh.shard_rows(batch)
    arguments = (frozen, state, batch, coefficients)
    step = gradient_step.lower(replace(objective, mesh=mesh), optimizer, *arguments)
    state, metrics = step.compile(compiler_options=options)(*arguments)
    gradient = jax.tree.leaves(state.optimizer_state)
    assert all(len(x.sharding.device_set) == 8 for x in gradient)
    updates[name] = jax.device_get((gradient, metrics))
sys.stdout.buffer.write(pickle.dumps(updates))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "names", [ON_DEVICES, [x for x in CASES if x not in ON_DEVICES]], ids=["some", "the others"]
)
def test_one_device_and_eight_have_the_same_update(build, plain, teacher, on_devices, names):
    cases = {}
    for name in names:
        objective, trained, batch = build(name)
        objective = dataclasses.replace(objective, mesh=Mesh(dp=1))  # one without devices
        frozen = jax.device_get(beside(objective, teacher))
        cases[name] = objective, jax.device_get(trained), batch, frozen
    arguments = (cases, OPTIMIZER, COEFFICIENTS, QUICK)
    done = subprocess.run(
        [sys.executable, "-c", EIGHT_DEVICES],
        input=pickle.dumps(arguments),
        capture_output=True,
        check=False,
        env=on_devices(8),
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    for name, (leaves, metrics) in pickle.loads(done.stdout).items():
        gradient = np.concatenate([leaf.ravel() for leaf in leaves])
        metrics = {key: float(x) for key, x in metrics.items()}
        assert_same_update((gradient, metrics), plain(name), tolerance=1e-5)
