import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.kl.estimators import kl_estimate
from rl4p.learner.kl.options import KLOptions


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


def test_in_the_reward_nothing_is_differentiated():
    options = KLOptions(estimator="k1", placement="in_reward")
    run = jax.value_and_grad(lambda x: options.penalty(x, jnp.float32(-0.5), jnp.float32(0)))
    np.testing.assert_array_equal(run(jnp.float32(0)), (0.5, 0))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3", "k3_plus"])
def test_the_weight_makes_value_or_gradient_right_for_another_sampler(estimator):
    """The sampler is uniform over three tokens; test_estimators.py computes the expected values."""
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
