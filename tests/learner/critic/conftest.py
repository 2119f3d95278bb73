"""Rows, and the outputs of the policy's trunk for them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.logprobs import trunk


@pytest.fixture(scope="session")
def rows(make_trajectories):
    return make_trajectories((2, 3), (3, 1), width=4, limit=4)


@pytest.fixture(scope="session")
def read(policy, params, rows):
    """Returns a function that computes a critic's values and the policy's trunk."""

    def read(critic, of_critic, of_policy=params):
        hidden_BTD = trunk(policy.decoder, of_policy, rows)
        parameters = of_policy | {"critic": of_critic}
        return critic.values(policy.decoder, parameters, hidden_BTD, rows), hidden_BTD

    return jax.jit(read, static_argnums=0)


@pytest.fixture(scope="session")
def with_head():
    """Returns a function that replaces a critic's head with one that is not 0."""

    def with_head(critic_params):
        kernel = np.random.default_rng(0).normal(size=32).astype(np.float32)
        head = {"kernel": jnp.asarray(kernel), "bias": jnp.float32(0.5)}
        return critic_params | {"value": head}

    return with_head
