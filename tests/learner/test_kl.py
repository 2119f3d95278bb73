from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rl4p.learner.kl import NONE, Adaptive, Fixed, KLOptions, kl_estimate

CONF = Path(__file__).resolve().parents[2] / "conf" / "kl"


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_yaml_has_the_defaults_of_the_class(path):
    penalty = instantiate(OmegaConf.load(path))
    assert penalty == type(penalty)()


@pytest.mark.parametrize(
    ("estimator", "difference", "value", "slope"),
    [
        ("k1", 0.5, 0.5, 1.0),
        ("k1", -0.5, -0.5, 1.0),
        ("k2", 0.5, 0.125, 0.5),
        ("k2", -0.5, 0.125, -0.5),
        ("k3", 0.5, 0.1065307, 0.3934693),  # e^-0.5 - 1 + 0.5, and 1 - e^-0.5
        ("k3", -0.5, 0.1487213, -0.6487213),
        ("k3_plus", 0.5, 0.1065307, 0.5),
        ("k3_plus", -0.5, 0.1487213, -0.5),
        ("k3", 0.0, 0.0, 0.0),
        ("k3", 1e-4, 5.0e-9, 1e-4),  # not lost to rounding
        ("k3", 1e4, 9999.0, 1.0),
        ("k3", -1e4, 485155194.4, 1.0),  # e^20: beyond it the exponential is constant
        ("k3_plus", -1e4, 485155194.4, -1e4),
    ],
)
def test_values_and_slopes(estimator, difference, value, slope):
    reference = jnp.float32(0.0)
    run = jax.value_and_grad(lambda x: kl_estimate(x, reference, estimator))
    got, got_slope = run(jnp.float32(difference))
    small = difference == 1e-4  # float32 keeps few digits of its square
    np.testing.assert_allclose(got, value, rtol=2e-3 if small else 1e-6)
    np.testing.assert_allclose(got_slope, slope, rtol=1e-3 if small else 1e-6)


def test_expectations_over_all_tokens():
    """The KL divergence of (1/2, 1/4, 1/4) from (1/4, 1/4, 1/2) is ln 2 / 4.

    Its gradient with respect to the logits is p (d - KL), where d is a token's log-ratio.
    """
    logits = jnp.log(jnp.asarray([0.5, 0.25, 0.25]))
    reference = jnp.log(jnp.asarray([0.25, 0.25, 0.5]))
    p = jnp.asarray([0.5, 0.25, 0.25])
    kl = np.log(2) / 4

    def mean(logits, estimator):
        return jnp.sum(p * kl_estimate(jax.nn.log_softmax(logits), reference, estimator))

    for estimator in ("k1", "k3", "k3_plus"):
        np.testing.assert_allclose(mean(logits, estimator), kl, rtol=1e-6)
    gradient = np.asarray(p) * (np.log([2, 1, 0.5]) - kl)
    for estimator in ("k2", "k3_plus"):
        np.testing.assert_allclose(jax.grad(mean)(logits, estimator), gradient, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(mean)(logits, "k1"), 0, atol=1e-7)


@pytest.mark.parametrize(
    ("estimator", "value", "slope"),
    [
        # d = 0.5 and w = 2: the value doubles, and the slope is w (k + k') if w is differentiable
        ("k1", 1.0, 3.0),
        ("k2", 0.25, 1.0),
        ("k3", 0.2130613, 1.0),
        ("k3_plus", 0.2130613, 1.0),
    ],
)
def test_the_importance_weight(estimator, value, slope):
    options = KLOptions(estimator=estimator, importance_weight=True)
    behaviour = jnp.float32(-np.log(2))
    run = jax.value_and_grad(lambda x: options.penalty(x, jnp.float32(-0.5), behaviour))
    np.testing.assert_allclose(run(jnp.float32(0)), (value, slope), rtol=1e-6)


@pytest.mark.parametrize("kind", [Fixed, Adaptive])
def test_the_policy_that_sampled_needs_no_reference(kind):
    assert kind(against="behaviour").needs == set()
    assert kind().needs == {"reference_logprobs"}
    with pytest.raises(ValueError, match="against=behaviour needs placement=in_loss"):
        kind(against="behaviour", placement="in_reward")


def test_in_the_reward_nothing_is_differentiated():
    options = KLOptions(estimator="k1", placement="in_reward")
    run = jax.value_and_grad(lambda x: options.penalty(x, jnp.float32(-0.5), jnp.float32(0)))
    np.testing.assert_array_equal(run(jnp.float32(0)), (0.5, 0))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3_plus"])
def test_the_weight_makes_value_or_gradient_right_for_another_sampler(estimator):
    """The sampler is uniform; `test_expectations_over_all_tokens` has the expected values."""
    logits = jnp.log(jnp.asarray([0.5, 0.25, 0.25]))
    reference, behaviour = jnp.log(jnp.asarray([0.25, 0.25, 0.5])), jnp.log(jnp.ones(3) / 3)
    options = KLOptions(estimator=estimator, importance_weight=True)

    def mean(logits):
        return jnp.mean(options.penalty(jax.nn.log_softmax(logits), reference, behaviour))

    kl = np.log(2) / 4
    if estimator != "k2":
        np.testing.assert_allclose(mean(logits), kl, rtol=1e-6)
    gradient = np.asarray([0.5, 0.25, 0.25]) * (np.log([2, 1, 0.5]) - kl)
    np.testing.assert_allclose(jax.grad(mean)(logits), gradient, rtol=1e-5)


@pytest.mark.parametrize("distance", [1e4, -1e4])
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3_plus"])
def test_extremes_are_finite(estimator, distance):
    options = KLOptions(estimator=estimator, importance_weight=True)
    run = jax.value_and_grad(lambda x: options.penalty(x, jnp.float32(0), jnp.float32(0)))
    assert np.isfinite(run(jnp.float32(distance))).all()


def test_a_weight_in_the_reward_is_refused():
    with pytest.raises(ValueError, match="importance_weight=true needs placement=in_loss"):
        KLOptions(placement="in_reward", importance_weight=True)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3_plus"])
def test_without_the_weight_the_sampler_is_not_looked_at(estimator):
    options = KLOptions(estimator=estimator)
    ours = options.penalty(jnp.float32(-1), jnp.float32(-1.5), jnp.float32(np.nan))
    assert ours == kl_estimate(jnp.float32(-1), jnp.float32(-1.5), estimator)


@pytest.mark.parametrize(("log_w", "expected"), [(19.0, 19.0), (1e3, 20.0), (-1e3, -20.0)])
def test_the_log_of_the_weight_is_clamped_at_twenty(log_w, expected):
    options = KLOptions(estimator="k1", importance_weight=True)
    weighed = options.penalty(jnp.float32(0), jnp.float32(-2), jnp.float32(-log_w))
    np.testing.assert_allclose(weighed, 2 * np.exp(expected), rtol=1e-5)


def test_nothing_is_asked_for_and_nothing_added():
    kl, x = NONE(), jnp.asarray([[-1.0, -2.0]])
    assert not kl.active
    assert kl.needs == set()
    assert kl.placement == "in_loss"
    np.testing.assert_array_equal(kl.penalty(x, x - 1, x - 2), [[0, 0]])
    assert not hasattr(kl, "initial_state")
    assert kl.coefficient({}) == 0


def test_the_coefficient_stays():
    kl = Fixed(beta=0.02)
    assert not hasattr(kl, "initial_state")
    assert kl.coefficient({}) == jnp.float32(0.02)


@pytest.mark.parametrize(("beta", "needs"), [(0.0, set()), (0.1, {"reference_logprobs"})])
def test_with_nothing_to_weigh_there_is_no_reference(beta, needs):
    assert Fixed(beta=beta).active == bool(needs)
    assert Fixed(beta=beta).needs == needs


KL = Adaptive(beta=0.5, target=0.1, limit=0.2, horizon=10.0)


@pytest.mark.parametrize(
    ("measured", "coefficient"),
    [
        (0.1, 0.5),
        (0.11, 0.505),  # the error is 0.1
        (0.09, 0.495),
        (5.0, 0.51),  # the error is 49, clipped to 0.2
        (-5.0, 0.49),
        (np.nan, 0.5),
        (np.inf, 0.5),
    ],
)
def test_it_moves_toward_the_target(measured, coefficient):
    memory = jax.jit(KL.next_state)(KL.initial_state(), jnp.float32(measured))
    np.testing.assert_allclose(KL.coefficient(memory), coefficient, rtol=1e-6)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), [KL.initial_state(), memory])
    assert shapes[0] == shapes[1]


def test_a_reference_is_always_asked_for():
    assert KL.active
    assert KL.needs == {"reference_logprobs"}
