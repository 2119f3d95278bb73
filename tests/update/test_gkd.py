"""Tests the divergences against the paper's formulas in float64, and a run with a teacher."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.runs.build import build
from rl4p.update.gkd import GKD
from tests.support.losses import built

SHAPE = ("layers=1", "heads=2", "num_kv_heads=1", "feed_forward_width=32")
RUN = (
    *("model=scratch", *(f"model.{x}" for x in SHAPE), "model.width=16"),
    *("+model@teacher=scratch", *(f"teacher.{x}" for x in SHAPE), "teacher.width=32"),
    *("advantage=constant", "update=gkd", "mesh=single", "prompts_per_step=16", "group_size=1"),
    *("data.train_size=64", "data.held_out_size=4", "max_response_tokens=8", "steps=6"),
    *("evaluation.every=0", "tracker=none", "optimizer.learning_rate=0.02"),
)


def softmax(logits):
    scores = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return scores / scores.sum(axis=-1, keepdims=True)


def oracle(beta, logits, teacher):
    """The divergence of equation 2 and its slope in the policy's logits, for float64 arrays."""
    q, p = softmax(logits), softmax(teacher)
    if beta == 0:
        return np.sum(p * np.log(p / q), axis=-1), q - p
    m = p if beta == 1 else beta * p + (1 - beta) * q
    to_teacher = np.sum(q * np.log(q / m), axis=-1)
    slope = q * (np.log(q / m) - to_teacher[..., None])
    if beta == 1:
        return to_teacher, slope
    value = beta * np.sum(p * np.log(p / m), axis=-1) + (1 - beta) * to_teacher
    return value, (1 - beta) * slope


def ours(update, logits, teacher):
    """The divergence of the update and its slope, from logits."""

    def total(logits):
        both = (jax.nn.log_softmax(jnp.asarray(x)) for x in (logits, teacher))
        divergence = update.divergence(*both)
        return jnp.sum(divergence), divergence

    slope, divergence = jax.grad(total, has_aux=True)(jnp.asarray(logits))
    return np.asarray(divergence), np.asarray(slope)


@pytest.fixture(scope="module")
def logits():
    """Logits of policy and teacher: [4, 5, 40], some far apart."""
    random = np.random.default_rng(0)
    return random.normal(0, 2, (4, 5, 40)), random.normal(0, 4, (4, 5, 40))


def test_the_yaml_has_the_defaults_of_the_class():
    assert built("update", "gkd") == GKD()


@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-6)])
def test_value_and_slope_are_those_of_the_paper(logits, beta, dtype, tolerance):
    expected = oracle(beta, *logits)
    assert np.abs(expected[1]).max() > 0.02
    with jax.enable_x64(dtype == "float64"):
        found = ours(GKD(beta=beta), *(x.astype(dtype) for x in logits))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("end", "near"), [(0.0, 1e-5), (1.0, 1 - 1e-5)])
def test_the_ends_are_the_limits_of_jensen_shannon(logits, end, near):
    logits = [x / 4 for x in logits]  # ratios above 1 / (1 - beta) would need a closer one
    with jax.enable_x64(True):
        limit = ours(GKD(beta=end), *logits)
        close = ours(GKD(beta=near), *logits)
    for a, b in zip(close, limit, strict=True):
        np.testing.assert_allclose(a / min(near, 1 - near), b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("top_k", [0, 3])
def test_a_teacher_that_agrees_changes_nothing(logits, beta, top_k):
    """Logits differ by a constant, which a softmax does not see."""
    policy = np.float32(logits[0])
    divergence, slope = ours(GKD(beta=beta, top_k=top_k), policy, policy + np.float32(0.5))
    np.testing.assert_allclose(divergence, 0, atol=1e-6)
    np.testing.assert_allclose(slope, 0, atol=1e-6)


def test_the_most_probable_tokens_of_the_policy_are_compared_and_the_rest_as_one():
    """By hand: of (1/2, 1/4, 1/8, 1/8) two are kept; the teacher's most probable is the last."""
    policy = np.log([[0.5, 0.25, 0.125, 0.125]])
    teacher = np.log([[0.125, 0.125, 0.25, 0.5]])
    with jax.enable_x64(True):
        reverse, _ = ours(GKD(beta=1.0, top_k=2), policy, teacher)
        forward, _ = ours(GKD(beta=0.0, top_k=2), policy, teacher)
    ratios = np.log([4, 2, 0.25 / 0.75])
    np.testing.assert_allclose(reverse, np.dot([0.5, 0.25, 0.25], ratios), rtol=1e-12)
    np.testing.assert_allclose(forward, -np.dot([0.125, 0.125, 0.75], ratios), rtol=1e-12)


@pytest.mark.quick(1)
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_slopes_of_bins_are_finite_differences(logits, beta):
    update, step = GKD(beta=beta, top_k=3), 1e-5
    policy, teacher = (x[0, 0] for x in logits)
    with jax.enable_x64(True):
        slope = ours(update, policy, teacher)[1]
        moved = policy + step * np.array([1, -1])[:, None, None] * np.eye(policy.size)
        up, down = ours(update, moved, np.broadcast_to(teacher, moved.shape))[0]
    np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=1e-5, atol=1e-8)
    assert np.abs(slope).max() > 1e-2


@pytest.mark.slow
def test_fewer_bins_are_a_lower_bound_and_all_of_them_the_whole(logits):
    policy, teacher = map(np.float32, logits)
    by_k = [ours(GKD(beta=0.5, top_k=k), policy, teacher)[0] for k in (1, 5, 20, 39, 40, 0)]
    for fewer, more in itertools.pairwise(by_k):
        assert (fewer <= more + 1e-6).all()
    assert (by_k[0] < by_k[-1] - 1e-3).any()
    np.testing.assert_array_equal(by_k[-2], by_k[-1])


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [0, 1])
@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_rare_tokens_keep_their_precision(beta, top_k):
    """The policy's other tokens together have e^-20, which 1 - p would round to 0."""
    policy, teacher = np.float64([[0, -20, -120]]), np.float64([[0, -10, -120]])
    expected = oracle(beta, policy, teacher)
    found = ours(GKD(beta=beta, top_k=top_k), np.float32(policy), np.float32(teacher))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=3e-3, atol=1e-7)
    assert expected[0] > 1e-5


@pytest.mark.slow
@pytest.mark.mixed_dtypes  # of optax
def test_a_policy_nears_its_teacher():
    """A real run with a wider teacher, whose tokens the policy draws itself."""
    experiment = build(compose(list(RUN)))
    losses = [info.metrics["update/loss"] for info in train(experiment.loop, experiment.state)]
    assert losses[0] > 1e-4
    assert losses[-1] < 0.7 * losses[0]
