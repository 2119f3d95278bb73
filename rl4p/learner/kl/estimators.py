"""Estimators of the divergence from a reference, from one sampled token."""

from typing import Literal

import jax
import jax.numpy as jnp

from rl4p.base.types import Array

Estimator = Literal["k1", "k2", "k3", "k3_plus"]


def kl_estimate(logprobs: Array, reference: Array, estimator: Estimator) -> Array:
    """Estimates KL(pi || pi_reference) from a token that pi sampled.

    The estimators are Schulman's ("Approximating KL divergence"). With the difference
    d = log pi - log pi_reference, their values and derivatives with respect to log pi are:

        k1        d                    1            unbiased; may be negative
        k2        d^2 / 2              d            biased; its gradient is the divergence's
        k3        exp(-d) - 1 + d      1 - exp(-d)  unbiased, never negative; biased gradient
        k3_plus   the value of k3      d            k3's value with k2's gradient (verl)

    As a loss, k1 alone has a gradient of expectation 0, so k1 belongs in the reward. The
    exponential of k3 clamps d to +-20.
    """
    difference = logprobs - reference
    if estimator == "k1":
        return difference
    k2 = jnp.square(difference) / 2
    if estimator == "k2":
        return k2
    k3 = jnp.expm1(jnp.clip(-difference, -20.0, 20.0)) + difference
    if estimator == "k3":
        return k3
    # The value of k3 - k2 + k2 would lose precision where k2 is much larger than k3.
    return jax.lax.stop_gradient(k3) + (k2 - jax.lax.stop_gradient(k2))
