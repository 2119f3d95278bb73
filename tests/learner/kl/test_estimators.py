import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.kl.estimators import kl_estimate


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
