"""Tests functions of a state: what they check and wait for, and that nested ones check nothing."""

import dataclasses
import re
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl4p.base.errors import RunError
from rl4p.base.types import Sampling, TrainingBatch, TrainState, Trajectories
from rl4p.distributed.mesh import ONE_DEVICE
from rl4p.learner.gradient_step import (
    Gradient,
    compiled,
    forward_backward,
    gradient_step,
    optimizer_step,
    summarise,
)
from rl4p.learner.optimizer import AdamW
from rl4p.model.decoder import Decoder, DecoderConfig
from rl4p.update.dpo import DPO
from rl4p.update.ppo import PPO


def new_state():
    return TrainState(
        step=jnp.int32(0), params=jnp.ones(3), optimizer_state=(), key=jax.random.key(0), memory={}
    )


def test_a_donated_state_is_refused_before_the_other_check():
    checked = []

    @compiled("power", donates=True, check=lambda state, power: checked.append(power))
    def step(state, power):
        return TrainState(**vars(state) | {"params": state.params * 2.0**power})

    state = new_state()
    after = step(state, 3)
    assert after.params.tolist() == [8, 8, 8]
    assert checked == [3]
    with pytest.raises(RunError, match=r"^The buffers of this state were donated to an update: .*"):
        step(state, power=1)
    assert checked == [3]
    assert step(after, power=1).params.tolist() == [16, 16, 16]


def test_a_state_keeps_its_buffers_unless_they_are_donated():
    total = compiled()(lambda state: jnp.sum(state.params))
    state = new_state()
    assert total(state) == total(state) == 3


def test_an_argument_that_fails_leaves_the_state_its_buffers():
    class Failed:  # JAX on a CPU runs a program with a callback at once, and this one never
        def block_until_ready(self):
            raise FloatingPointError("the gradient failed")

    step = compiled(donates=True)(lambda state, gradient: state)
    state = new_state()
    with pytest.raises(FloatingPointError, match="the gradient failed"):
        step(state, Failed())
    state.check_not_donated()


def test_within_another_compiled_function_nothing_is_checked():
    checked = []

    @compiled(check=lambda state, x: checked.append(x))
    def double(state, x):
        return x + x

    assert jax.jit(lambda x: double(new_state(), x))(np.float32(2)) == 4
    assert checked == []


def test_a_program_is_traced_and_lowered_from_shapes():
    double = compiled()(lambda x: x + x)
    shape = jax.ShapeDtypeStruct((2,), np.float32)
    assert "add" in str(double.trace(shape).jaxpr)
    assert double.lower(shape).compile()(jnp.ones(2)).tolist() == [2, 2]


B, T = 8, 16
SAMPLING = Sampling(temperature=0.7)
UPDATE = PPO(clip_high=0.28, tokens_per_microbatch=B * T)


@dataclass(frozen=True, kw_only=True)
class SumOfGradients:
    """Adds gradients up in its state; the parameters begin to move at step 10."""

    def transform(self):
        def init(params):
            return {"sum": jax.tree.map(jnp.zeros_like, params), "updates": jnp.int32(0)}

        def update(gradient, state, params=None):
            total = jax.tree.map(jnp.add, state["sum"], gradient)
            down = jax.tree.map(jnp.negative, gradient)
            return down, {"sum": total, "updates": state["updates"] + 1}

        return optax.GradientTransformation(init, update)

    def learning_rate_at(self, step):
        return jnp.where(step >= 10, 0.1, 0.0)


@pytest.fixture(scope="module")
def step(policy, params, make_state, make_objective):
    def step(batch, update: Any = UPDATE, optimizer: Any = SumOfGradients(), number=0):
        state = make_state(params, optimizer, step=number)
        objective = make_objective(update, sampling=SAMPLING)
        return gradient_step(objective, optimizer, {}, state, batch, {})

    return step


@pytest.fixture(scope="module")
def whole(step, batch):
    """The update that the others must equal: one microbatch, as few columns as there are."""
    return summed(step(batch))


def summed(result):
    state, metrics = result
    return jax.device_get(state.optimizer_state["sum"]), {n: float(x) for n, x in metrics.items()}


def assert_same_update(ours, wanted):
    (gradient, metrics), (expected, expected_metrics) = ours, wanted
    flat, expected = (
        np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(tree)])
        for tree in (gradient, expected)
    )
    assert np.linalg.norm(flat - expected) <= 1e-6 * np.linalg.norm(expected)
    assert metrics == pytest.approx(expected_metrics, rel=1e-5, abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows",
    [
        4,
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(1, marks=pytest.mark.slow),
        pytest.param(0, marks=pytest.mark.slow),
    ],
)
def test_microbatches_change_nothing(step, batch, whole, rows):
    """2, 4 and 8 of them; a limit of less than a row is one row."""
    update = dataclasses.replace(UPDATE, tokens_per_microbatch=max(rows * T, 1))
    assert_same_update(summed(step(batch, update)), whole)


@pytest.mark.slow
def test_microbatches_change_nothing_where_sequences_are_averaged(step, batch):
    """Three, the last one short. A mean of means is the mean over tokens of scaled advantages."""
    update = dataclasses.replace(
        UPDATE, aggregation="sequence_mean_token_mean", tokens_per_microbatch=3 * T
    )
    lengths = np.asarray(batch.loss_mask_BT).sum(axis=1, keepdims=True)
    scale = lengths.sum() / np.maximum(lengths, 1) / np.sum(lengths > 0)
    scaled = dataclasses.replace(batch, advantages_BT=batch.advantages_BT * np.float32(scale))
    assert_same_update(summed(step(batch, update)), summed(step(scaled)))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (3, 5),
        pytest.param(8, 0, marks=pytest.mark.slow),
        pytest.param(0, 8, marks=pytest.mark.slow),
    ],
)
def test_padding_changes_nothing(step, batch, whole, make_trajectories, left, right):
    columns = ((0, 0), (left, right))
    padded = TrainingBatch(
        trajectories=make_trajectories(left=left, right=right),
        advantages_BT=jnp.pad(batch.advantages_BT, columns),
        loss_mask_BT=jnp.pad(batch.loss_mask_BT, columns),
        scores={"proximal_logprobs": jnp.pad(batch.scores["proximal_logprobs"], columns)},
    )
    update = dataclasses.replace(UPDATE, tokens_per_microbatch=B * (T + 8))
    assert_same_update(summed(step(padded, update)), whole)


def test_the_order_of_sequences_changes_nothing(step, batch, whole):
    order = np.random.default_rng(1).permutation(B)
    assert_same_update(summed(step(jax.tree.map(lambda x: x[order], batch))), whole)


def test_what_is_outside_the_loss_mask_may_hold_anything(step, batch, whole):
    outside = ~batch.loss_mask_BT
    trajectories = dataclasses.replace(
        batch.trajectories,
        behaviour_logprobs_BT=jnp.where(outside, jnp.nan, batch.trajectories.behaviour_logprobs_BT),
    )
    poisoned = dataclasses.replace(
        batch,
        trajectories=trajectories,
        advantages_BT=jnp.where(outside, jnp.nan, batch.advantages_BT),
        scores={
            "proximal_logprobs": jnp.where(outside, -jnp.inf, batch.scores["proximal_logprobs"])
        },
    )
    assert_same_update(summed(step(poisoned)), whole)


def test_what_no_policy_sampled_has_no_gap_to_the_sampler(step, batch):
    version = batch.trajectories.policy_version_BT.at[jnp.asarray([0, 5])].set(-1)
    trajectories = dataclasses.replace(batch.trajectories, policy_version_BT=version)
    _, metrics = step(dataclasses.replace(batch, trajectories=trajectories))
    gap = np.abs(batch.scores["proximal_logprobs"] - batch.trajectories.behaviour_logprobs_BT)
    sampled = np.asarray(batch.loss_mask_BT) & (np.asarray(version) >= 0)
    assert metrics["rollout/logprob_gap_max"] == gap[sampled].max()


def test_the_gap_to_the_sampler_is_that_of_tokens_with_the_weights_of_the_step(step, batch):
    """The others differ because the policy has changed since, which the correction still sees."""
    _, fresh = step(batch)
    version = batch.trajectories.policy_version_BT
    others = jnp.where(jnp.arange(len(version))[:, None] < 5, version + 1, version)
    trajectories = dataclasses.replace(batch.trajectories, policy_version_BT=others)
    _, metrics = step(dataclasses.replace(batch, trajectories=trajectories))
    gap = np.abs(batch.scores["proximal_logprobs"] - batch.trajectories.behaviour_logprobs_BT)
    mask = np.asarray(batch.loss_mask_BT)
    rows = np.arange(len(mask))[:, None] >= 5
    assert metrics["rollout/logprob_gap_max"] == gap[mask & rows].max()
    assert metrics["rollout/logprob_gap_mean"] == pytest.approx(gap[mask & rows].mean(), rel=1e-5)
    assert metrics["rollout/fresh"] == pytest.approx((mask & rows).sum() / mask.sum())
    assert metrics["rollout/mismatch_kl"] == fresh["rollout/mismatch_kl"]


@pytest.mark.parametrize("nothing", ["advantages_BT", "loss_mask_BT"])
def test_without_advantages_or_tokens_the_gradient_is_exactly_zero(step, batch, nothing):
    empty = dataclasses.replace(batch, **{nothing: jnp.zeros_like(getattr(batch, nothing))})
    gradient, metrics = summed(step(empty))
    assert not any(leaf.any() for leaf in jax.tree.leaves(gradient))
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["update/loss"] == metrics["update/grad_norm"] == metrics["update/skipped"] == 0


def in_numpy(numpy_logits, config, params, batch):
    """Loss and metrics of `UPDATE` in float64, row by row, without padding."""
    losses, columns = 0.0, {name: [] for name in ("kl", "entropy", "low", "high", "mismatch")}
    for row in range(B):
        real = np.flatnonzero(batch.trajectories.segment_ids_BT[row])
        tokens = batch.trajectories.tokens_BT[row, real]
        scores = numpy_logits(config, params, tokens) / SAMPLING.temperature
        scores -= np.log(np.sum(np.exp(scores), axis=1, keepdims=True))
        for i in range(1, len(real)):
            if not batch.loss_mask_BT[row, real[i]]:
                continue
            log_p, A = scores[i - 1, tokens[i]], np.float64(batch.advantages_BT[row, real[i]])
            proximal = np.float64(batch.scores["proximal_logprobs"][row, real[i]])
            ratio = np.exp(log_p - proximal)
            losses += -min(A * ratio, A * np.clip(ratio, 0.8, 1.28))
            columns["kl"].append(ratio - 1 - np.log(ratio))
            columns["entropy"].append(-np.sum(np.exp(scores[i - 1]) * scores[i - 1]))
            columns["low"].append(ratio < 0.8 and A < 0)
            columns["high"].append(ratio > 1.28 and A > 0)
            behaviour = np.float64(batch.trajectories.behaviour_logprobs_BT[row, real[i]])
            columns["mismatch"].append(proximal - behaviour)
    count = len(columns["kl"])
    return losses / count, {name: np.asarray(x) for name, x in columns.items()}


@pytest.mark.slow
def test_loss_metrics_and_gradient_are_those_of_numpy_in_float64(
    policy, params, batch, whole, numpy_logits
):
    """The gradient against central differences, along a random direction for each parameter."""
    gradient, metrics = whole
    batch, config = jax.device_get(batch), policy.decoder.config
    loss, columns = in_numpy(numpy_logits, config, params, batch)
    assert columns["low"].any()
    assert columns["high"].any()
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gradient)))
    weight = np.exp(columns["mismatch"])
    assert metrics == pytest.approx(
        {
            "update/loss": loss,
            "update/grad_norm": norm,
            "update/skipped": 0.0,
            "update/learning_rate": 0.0,
            "update/approx_kl": columns["kl"].mean(),
            "update/entropy": columns["entropy"].mean(),
            "update/clip_low": columns["low"].mean(),
            "update/clip_high": columns["high"].mean(),
            "update/ess": weight.sum() ** 2 / np.square(weight).sum() / len(weight),
            "rollout/logprob_gap_max": np.abs(columns["mismatch"]).max(),
            "rollout/logprob_gap_mean": np.abs(columns["mismatch"]).mean(),
            "rollout/fresh": 1.0,
            "rollout/mismatch_kl": (weight - 1 - columns["mismatch"]).mean(),
        },
        rel=1e-4,
    )
    random, flat = np.random.default_rng(2), jax.tree_util.tree_leaves_with_path(params)
    leaves = [np.float64(leaf) for _, leaf in flat]
    treedef = jax.tree.structure(params)
    for i, slope in enumerate(jax.tree.leaves(gradient)):
        direction = random.normal(0, 1e-5, slope.shape)
        ends = [
            in_numpy(
                numpy_logits,
                config,
                treedef.unflatten([*leaves[:i], leaves[i] + sign * direction, *leaves[i + 1 :]]),
                batch,
            )[0]
            for sign in (1, -1)
        ]
        expected = (ends[0] - ends[1]) / 2
        scale = np.linalg.norm(slope) * 1e-5  # of such a derivative along a random direction
        assert abs(np.sum(slope * direction) - expected) < 1e-4 * scale, flat[i][0]


# Two passes of four minibatches; every row has five tokens, so that all minibatches weigh the same.
SEVERAL = dataclasses.replace(UPDATE, epochs=2, minibatches=4)


@pytest.fixture(scope="module")
def full(batch):
    rows = jnp.asarray([0, 5, 7, 0, 5, 7, 0, 5])
    full = jax.tree.map(lambda x: x[rows], batch)
    return dataclasses.replace(full, loss_mask_BT=full.loss_mask_BT & (np.arange(T) < 13))


@pytest.mark.slow
def test_every_sequence_is_in_one_minibatch_of_every_pass(step, full):
    """Parameters stand still: the eight gradients of two rows add up to 8 times the whole."""
    whole, _ = summed(step(full))
    state, metrics = step(full, SEVERAL)
    total, _ = summed((state, metrics))
    assert state.optimizer_state["updates"] == 8
    for a, b in zip(jax.tree.leaves(total), jax.tree.leaves(whole), strict=True):
        np.testing.assert_allclose(a, 8 * b, atol=1e-5 * np.abs(8 * b).max())


@pytest.mark.slow
def test_minibatches_are_drawn_anew_in_every_step_and_the_same_in_the_same(step, full):
    def moved(number):
        state, metrics = step(full, SEVERAL, number=number)
        assert metrics["update/learning_rate"] == pytest.approx(0.1)
        return np.asarray(state.params["embedding"])

    np.testing.assert_array_equal(moved(10), moved(10))
    assert not np.allclose(moved(10), moved(11), rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_counted(step, batch, params):
    bad = dataclasses.replace(batch, advantages_BT=batch.advantages_BT.at[0, 8].set(jnp.inf))
    state, metrics = step(bad, number=10)
    assert metrics["update/skipped"] == 1
    jax.tree.map(np.testing.assert_array_equal, state.params, params)
    assert state.optimizer_state["updates"] == 0
    assert not any(leaf.any() for leaf in jax.tree.leaves(state.optimizer_state["sum"]))


@pytest.mark.slow
def test_the_other_minibatches_are_not_lost_to_a_bad_one(step, full, params):
    bad = dataclasses.replace(full, advantages_BT=full.advantages_BT.at[0, 8].set(jnp.nan))
    state, metrics = step(bad, SEVERAL, number=10)
    assert metrics["update/skipped"] == 2  # once a pass
    assert state.optimizer_state["updates"] == 6
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    assert not np.array_equal(state.params["embedding"], params["embedding"])


@pytest.fixture(scope="module")
def in_half_precision(policy, params, make_state, make_objective, batch):
    """Parameters before, state after and metrics of a real optimizer, without old logprobs."""
    decoder = dataclasses.replace(policy.decoder, dtype="bfloat16")
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    optimizer = AdamW(learning_rate=1e-2)
    state = make_state(half, optimizer)
    batch = dataclasses.replace(batch, scores={})
    objective = make_objective(UPDATE, sampling=SAMPLING, decoder=decoder)
    return half, *gradient_step(objective, optimizer, {}, state, batch, {})


@pytest.mark.slow
def test_parameters_in_half_precision_stay_so(in_half_precision):
    before, state, metrics = in_half_precision
    assert {leaf.dtype for leaf in jax.tree.leaves(state.params)} == {jnp.dtype("bfloat16")}
    assert metrics["update/skipped"] == 0
    assert not np.array_equal(state.params["embedding"], before["embedding"])


@pytest.mark.slow
def test_without_old_logprobs_the_ratio_is_one(in_half_precision, batch):
    *_, metrics = in_half_precision
    assert metrics["update/approx_kl"] == metrics["update/clip_low"] == 0
    assert metrics["update/grad_norm"] > 0.1
    loss = -np.mean(batch.advantages_BT[batch.loss_mask_BT])
    assert metrics["update/loss"] == pytest.approx(float(loss), rel=1e-5)


def abstract(objective, rows, columns, words, width=64, layers=1, max_grad_norm=1.0):
    """Arguments of a gradient step, as shapes."""
    decoder = Decoder(
        config=DecoderConfig(
            vocabulary=words,
            width=width,
            layers=layers,
            heads=2,
            head_width=32,
            num_kv_heads=1,
            feed_forward_width=width,
            max_positions=columns,
        )
    )

    def array(dtype, *shape):
        return jax.ShapeDtypeStruct(shape, dtype)

    params = jax.eval_shape(decoder.init, jax.random.key(0))
    optimizer, of_token = AdamW(max_grad_norm=max_grad_norm), (rows, columns)
    state = TrainState(
        step=array(np.int32),
        params=params,
        optimizer_state=jax.eval_shape(optimizer.transform().init, params),
        key=jax.eval_shape(lambda: jax.random.key(0)),
        memory={},
    )
    batch = TrainingBatch(
        trajectories=Trajectories(
            tokens_BT=array(np.int32, *of_token),
            response_mask_BT=array(bool, *of_token),
            positions_BT=array(np.int32, *of_token),
            segment_ids_BT=array(np.int32, *of_token),
            behaviour_logprobs_BT=array(np.float32, *of_token),
            policy_version_BT=array(np.int32, *of_token),
            group_ids_B=array(np.int32, rows),
            finish_B=array(np.int8, rows),
        ),
        advantages_BT=array(np.float32, *of_token),
        loss_mask_BT=array(bool, *of_token),
        scores={},
    )
    coefficients = {"kl": array(np.float32), "entropy": array(np.float32)}
    objective = dataclasses.replace(objective, decoder=decoder, sampling=SAMPLING)
    return objective, optimizer, {}, state, batch, coefficients


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_logits_of_all_tokens_are_never_in_memory_at_once(make_objective):
    """16k tokens of 152k words are 10 GB of logits; compiled, not run.

    An eighth of them is in memory at a time (`MOST_CHUNKS`), in fewer than five arrays.
    """
    rows, columns, words = 16, 1024, 152_000
    objective = make_objective(PPO(tokens_per_microbatch=rows * columns, microbatch_widths=1))
    program = gradient_step.lower(*abstract(objective, rows, columns, words)).compile()
    assert program.memory_analysis().temp_size_in_bytes < 5 * rows * columns * words * 4 / 8


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_a_gradient_is_once_in_memory_and_no_moment_twice(make_objective):
    """Microbatches of few tokens add to one gradient in place, layer by layer."""
    objective = make_objective(PPO(tokens_per_microbatch=16, microbatch_widths=1))
    # Without clipping: a clipped gradient is another array.
    arguments = abstract(objective, 4, 16, 264, width=256, layers=8, max_grad_norm=0.0)
    program = gradient_step.lower(*arguments).compile()
    size = sum(4 * x.size for x in jax.tree.leaves(arguments[3].params))
    assert program.memory_analysis().temp_size_in_bytes < 1.4 * size


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_the_gradient_of_unrolled_layers_is_not_copied_for_each_of_them(make_objective):
    layers, objective = 8, make_objective(PPO(tokens_per_microbatch=16, microbatch_widths=1))
    objective, *arguments = abstract(objective, 4, 16, 264, width=256, layers=layers)
    decoder = dataclasses.replace(objective.decoder, remat="none", unroll=True)
    objective = dataclasses.replace(objective, decoder=decoder)
    text = gradient_step.lower(objective, *arguments).compile().as_text()
    kernel = arguments[2].params["layers"]["down"]["kernel"].shape
    shape = ",".join(map(str, kernel))
    assert f"f32[{shape}]" in text
    assert len(re.findall(rf"= f32\[{shape}\]\S* copy\(", text)) < layers


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_there_are_as_many_loops_over_microbatches_as_is_asked_for(make_objective):
    def loops(most):
        objective = make_objective(PPO(microbatch_widths=most))
        return str(gradient_step.trace(*abstract(objective, 8, 96, 264)).jaxpr).count("while[")

    assert [loops(most) - loops(1) for most in (2, 4, 8)] == [1, 2, 2]  # 96, 64 and 48 wide


@dataclass(frozen=True, kw_only=True)
class Bounded(PPO):
    """PPO, whose loss alone is infinite where an advantage is above 50: its gradient is not."""

    def __call__(self, logprobs_BT, batch):
        loss_BT, extras = super().__call__(logprobs_BT, batch)
        return loss_BT + jnp.where(batch.advantages_BT > 50, jnp.inf, 0.0), extras


@pytest.mark.slow
def test_the_length_that_divides_is_the_updates_and_a_loss_must_be_finite_too(
    step, batch, whole, params
):
    """The mean over tokens times their number, over seven sequences with a loss and 5 tokens."""
    update = Bounded(
        clip_high=0.28,
        aggregation="constant",
        aggregation_length=5,
        tokens_per_microbatch=B * T,
    )
    _, metrics = step(batch, update)
    mask = np.asarray(batch.loss_mask_BT)
    scale = mask.sum() / mask.any(axis=1).sum() / 5
    assert metrics["update/loss"] == pytest.approx(scale * whole[1]["update/loss"], rel=1e-5)
    bad = dataclasses.replace(batch, advantages_BT=batch.advantages_BT.at[0, 8].set(99.0))
    state, metrics = step(bad, update, number=10)
    assert metrics["update/loss"] == np.inf
    assert np.isfinite(metrics["update/grad_norm"])
    assert metrics["update/skipped"] == 1
    jax.tree.map(np.testing.assert_array_equal, state.params, params)


@pytest.mark.slow
def test_a_norm_that_overflows_is_not_finite_though_the_loss_is(step, batch, params):
    """The squares of 1e25 do not fit into a float32."""
    bad = dataclasses.replace(batch, advantages_BT=batch.advantages_BT * 1e25)
    state, metrics = step(bad, number=10)
    assert np.isfinite(metrics["update/loss"])
    assert metrics["update/grad_norm"] == np.inf
    assert metrics["update/skipped"] == 1
    jax.tree.map(np.testing.assert_array_equal, state.params, params)


def test_a_state_is_given_up_to_the_step_and_does_not_advance(
    policy, params, make_state, make_objective, batch
):
    optimizer = SumOfGradients()
    before = make_state(params, optimizer, step=10)
    after, metrics = gradient_step(
        make_objective(UPDATE, sampling=SAMPLING), optimizer, {}, before, batch, {}
    )
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(before.params))
    assert after.step == 10
    assert jax.random.key_data(after.key).tolist() == [0, 1]
    assert metrics["update/learning_rate"] == pytest.approx(0.1)


@pytest.fixture(scope="module")
def pair(policy, params, make_state, make_objective):
    """A real optimizer's state in step 10, and the two parts of an update as functions of it."""
    optimizer, objective = AdamW(learning_rate=1e-2), make_objective(UPDATE, sampling=SAMPLING)

    def backward(state, batch, objective=objective):
        return forward_backward(objective, {}, state, batch, {})

    def fused(state, batch, objective=objective):
        return gradient_step(objective, optimizer, {}, state, batch, {})

    return SimpleNamespace(
        state=lambda: make_state(params, optimizer, step=10),
        backward=backward,
        step=partial(optimizer_step, optimizer, objective.mesh),
        fused=fused,
    )


@pytest.mark.mixed_dtypes  # optax promotes
def test_the_two_parts_of_an_update_equal_the_whole_in_every_bit(
    policy, params, make_state, make_objective, batch
):
    """Compiled as in a run: at the level of other tests, a loop and single calls differ."""
    options = {"xla_backend_optimization_level": 3}
    if version("jaxlib") < "0.11":
        options["xla_cpu_use_fusion_emitters"] = True
    optimizer, objective = AdamW(learning_rate=1e-2), make_objective(UPDATE, sampling=SAMPLING)
    state, fused = (make_state(params, optimizer, step=10) for _ in range(2))
    of_policy, mesh = (objective, {}, state, batch, {}), objective.mesh
    backward = forward_backward.lower(*of_policy).compile(options)
    whole = gradient_step.lower(objective, optimizer, *of_policy[1:]).compile(options)
    step = optimizer_step.lower(optimizer, mesh, state, backward({}, state, batch, {}))
    step = step.compile(options)
    for number in range(2):
        gradient = backward({}, state, batch, {})
        assert all(leaf.any() for leaf in jax.tree.leaves(gradient.params))
        assert gradient.version == state.step
        assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(state.params))
        before = np.asarray(state.params["embedding"]).copy()
        state, sums = step(state, gradient)
        assert not np.array_equal(state.params["embedding"], before)
        fused, metrics = whole({}, fused, batch, {})
        jax.tree.map(np.testing.assert_array_equal, state.params, fused.params)
        jax.tree.map(np.testing.assert_array_equal, state.optimizer_state, fused.optimizer_state)
        assert metrics.pop("update/learning_rate") == np.float32(1e-2)
        own = {name: float(x) for name, x in summarise(sums).items()}
        assert own == pytest.approx({n: float(x) for n, x in metrics.items()}, rel=1e-6)
        assert state.step == fused.step == 10 + number
        state, fused = (dataclasses.replace(x, step=x.step + 1) for x in (state, fused))


@pytest.mark.mixed_dtypes  # optax promotes
def test_a_state_that_an_update_took_is_refused_in_one_sentence(pair, batch):
    donated = pair.state()
    gradient = pair.backward(donated, batch)
    after, _ = pair.step(donated, gradient)
    for refused in (
        lambda: pair.backward(donated, batch),
        lambda: pair.step(donated, gradient),
        lambda: pair.fused(donated, batch),
    ):
        with pytest.raises(RunError, match=r"^The buffers of this state .* a checkpoint\.$"):
            refused()
    pair.fused(after, batch)


@pytest.mark.mixed_dtypes  # optax promotes
def test_a_gradient_of_other_weights_is_refused_and_the_state_stays(pair, batch):
    state = pair.state()
    gradient = pair.backward(state, batch)
    later = dataclasses.replace(state, step=state.step + 1)
    with pytest.raises(RunError, match="the weights of step 10, but the state is at step 11"):
        pair.step(later, gradient)
    pair.step(later, pair.backward(later, batch))


@dataclass(frozen=True, kw_only=True)
class FailsOnTheDevice(PPO):
    """PPO with a callback that raises while the compiled program runs."""

    def __call__(self, logprobs_BT, batch):
        def fail(advantages_BT):
            raise ValueError("no loss today")

        loss_BT, extras = super().__call__(logprobs_BT, batch)
        shape = jax.ShapeDtypeStruct(loss_BT.shape, loss_BT.dtype)
        return loss_BT + jax.pure_callback(fail, shape, batch.advantages_BT), extras


@pytest.mark.slow
@pytest.mark.mixed_dtypes  # optax promotes
def test_a_failed_update_takes_the_state_and_a_failed_gradient_does_not(
    pair, batch, make_objective
):
    failing = make_objective(FailsOnTheDevice(tokens_per_microbatch=B * T), sampling=SAMPLING)
    state = pair.state()
    with pytest.raises(jax.errors.JaxRuntimeError, match="no loss today"):
        pair.step(state, pair.backward(state, batch, failing))
    with pytest.raises(jax.errors.JaxRuntimeError, match="no loss today"):
        jax.block_until_ready(pair.fused(state, batch, failing))
    with pytest.raises(RunError, match="were donated to an update"):
        pair.fused(state, batch)
    # JAX waits for the last callback at the end of the process: let it be one that succeeds.
    one = jax.ShapeDtypeStruct((), jnp.float32)
    jax.block_until_ready(jax.jit(lambda: jax.pure_callback(lambda: np.float32(1), one))())


@dataclass(frozen=True, kw_only=True)
class Norms:
    """Remembers the norm of each gradient, and moves nothing."""

    updates: int

    def transform(self):
        def init(params):
            return {"norms": jnp.zeros(self.updates), "updates": jnp.int32(0)}

        def update(gradient, state, params=None):
            norms = state["norms"].at[state["updates"]].set(optax.tree.norm(gradient))
            return gradient, {"norms": norms, "updates": state["updates"] + 1}

        return optax.GradientTransformation(init, update)

    def learning_rate_at(self, step):
        return jnp.float32(0)


@pytest.mark.slow
def test_groups_stay_together_in_an_order_that_is_drawn_for_every_pass(
    policy, params, make_state, make_objective, batch
):
    """Pairs that are no neighbours, each a minibatch of its own, against each pair alone.

    A pair that is divided has no loss. The key of the order is folded from the step's key by 1
    (a rollout has 0), and then by the pass.
    """
    groups = np.int32([3, 1, 0, 2, 3, 0, 2, 1])
    mask = batch.trajectories.response_mask_BT.at[:, 8].set(True)
    rising = np.asarray(batch.scores["proximal_logprobs"]) + np.arange(8)[:, None] * np.float32(0.1)
    pairs = TrainingBatch(
        trajectories=dataclasses.replace(
            batch.trajectories, group_ids_B=jnp.asarray(groups), response_mask_BT=mask
        ),
        advantages_BT=jnp.where(mask, jnp.float32([1, 1, 1, 1, -1, -1, -1, -1])[:, None], 0),
        loss_mask_BT=mask,
        scores=dict.fromkeys(("proximal_logprobs", "reference_logprobs"), jnp.asarray(rising)),
    )
    epochs, number = 3, 7

    def norms(update, rows, count):
        optimizer = Norms(updates=count)
        objective = make_objective(update, group_size=2, sampling=SAMPLING)
        state = make_state(params, optimizer, step=number)
        state, _ = gradient_step(objective, optimizer, {}, state, rows, {})
        return np.asarray(state.optimizer_state["norms"])

    alone = np.concatenate(
        [norms(DPO(), jax.tree.map(lambda x, g=g: x[groups == g], pairs), 1) for g in range(4)]
    )
    assert alone.min() > 1e-3
    assert np.diff(np.sort(alone)).min() > 1e-4 * alone.max()
    found = norms(DPO(epochs=epochs, minibatches=4), pairs, 4 * epochs).reshape(epochs, 4)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(1), number), 1)
    order = [jax.random.permutation(jax.random.fold_in(key, i), 4) for i in range(epochs)]
    assert len({tuple(map(int, x)) for x in order}) > 1
    np.testing.assert_allclose(found, alone[np.asarray(order)], rtol=1e-4)


def test_sums_of_several_updates_become_means_over_all_their_tokens():
    """Updates of 2 and 6 tokens; the returns 8 in all have squares 20: 20 - 64 / 8 = 12."""
    metrics = summarise(
        {
            "tokens": jnp.asarray([2.0, 6.0]),
            "loss": jnp.asarray([1.0, 4.0]),
            "grad_norm": jnp.asarray([3.0, 5.0]),
            "skipped": jnp.asarray([1.0, 1.0]),
            "weight": jnp.asarray([3.0, 5.0]),
            "squared_weight": jnp.asarray([6.0, 10.0]),
            "logprob_gap": jnp.asarray([1.0, 3.0]),
            "fresh": jnp.asarray([1.0, 4.0]),
            "logprob_gap_max": jnp.asarray([7.0, 2.0]),
            "mismatch_kl": jnp.asarray([0.5, 1.5]),
            "entropy": jnp.asarray([2.0, 10.0]),
            "value_loss": jnp.asarray([1.0, 1.0]),
            "returns": jnp.asarray([5.0, 3.0]),
            "squared_returns": jnp.asarray([11.0, 9.0]),
            "squared_value_errors": jnp.asarray([1.0, 2.0]),
        }
    )
    assert {name: float(x) for name, x in metrics.items()} == pytest.approx(
        {
            "update/loss": 2.5,
            "update/grad_norm": 4.0,
            "update/skipped": 2.0,
            "update/ess": 64 / 16 / 8,
            "rollout/logprob_gap_max": 7.0,
            "rollout/logprob_gap_mean": 0.8,
            "rollout/fresh": 0.625,
            "rollout/mismatch_kl": 0.25,
            "update/entropy": 1.5,
            "update/value_loss": 0.25,
            "update/explained_variance": 1 - 3 / 12,
        }
    )


def test_sums_of_no_tokens_are_finite():
    names = (
        *("tokens", "loss", "grad_norm", "skipped", "weight", "squared_weight"),
        *("logprob_gap", "fresh"),
        *("logprob_gap_max", "mismatch_kl", "returns", "squared_returns", "squared_value_errors"),
    )
    metrics = summarise({name: jnp.zeros(1) for name in names})
    assert all(np.isfinite(x) for x in metrics.values())
    assert metrics["update/explained_variance"] == 1


@pytest.mark.quick(1)
@pytest.mark.mixed_dtypes
@pytest.mark.parametrize("rows", [8, 2])
def test_a_microbatch_has_as_many_tokens_as_fit(make_objective, rows):
    """Rows of 96 tokens with 64 activations each; traced, not run."""
    objective = make_objective(PPO(tokens_per_microbatch=rows * 96, microbatch_widths=1))
    program = str(gradient_step.trace(*abstract(objective, 8, 96, 264)).jaxpr)
    assert [f"f32[{b},96,64]" in program for b in (8, 2)] == [rows == 8, rows == 2]


@pytest.mark.mixed_dtypes  # optax promotes
def test_a_constant_stays_whatever_its_gradient():
    params = {
        "layers": {
            "experts": {"router_correction": jnp.ones((2, 1, 4)), "router": jnp.ones((2, 3, 4))}
        }
    }
    optimizer = AdamW(learning_rate=0.1, weight_decay=0.5)
    state = TrainState(
        step=jnp.int32(0),
        params=params,
        optimizer_state=optimizer.transform().init(params),
        key=jax.random.key(0),
        memory={},
    )
    gradient = Gradient(jax.tree.map(jnp.ones_like, params), {"loss": jnp.ones(())}, state.step)
    after, _ = optimizer_step(optimizer, ONE_DEVICE, state, gradient)
    experts = after.params["layers"]["experts"]
    np.testing.assert_array_equal(experts["router_correction"], 1)
    assert experts["router"].max() < 0.9
