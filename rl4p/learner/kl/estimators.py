"""Estimates of the divergence from a reference, from one sampled token."""

from typing import Literal

import jax
import jax.numpy as jnp

from rl4p.types import Array

Estimator = Literal["k1", "k2", "k3", "k3_plus"]


def kl_estimate(logprobs: Array, reference: Array, estimator: Estimator) -> Array:
    """KL(pi || pi_reference) by a token that pi sampled (Schulman, "Approximating KL divergence").

    With d = log pi - log pi_reference, and each one's slope by log pi:

        k1        d                    1            unbiased; of both signs
        k2        d^2 / 2              d            biased; its gradient is that of the divergence
        k3        exp(-d) - 1 + d      1 - exp(-d)  unbiased, never negative; biased gradient
        k3_plus   the value of k3      d            k3's value with k2's gradient (verl)

    As a loss on its own k1 has a gradient of expectation 0: it belongs in the reward. d is clamped
    to +-20 in the exponential of k3.
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
    # Not k3 - k2 + k2, whose value loses its digits where the two are far apart.
    return jax.lax.stop_gradient(k3) + (k2 - jax.lax.stop_gradient(k2))
