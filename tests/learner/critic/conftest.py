"""Rows, and what the policy's trunk makes of them."""

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
    """Returns a critic's values under its parameters, and the policy's trunk under its own."""

    def read(critic, of_critic, of_policy=params):
        hidden_BTD = trunk(policy.decoder, of_policy, rows)
        parameters = of_policy | {"critic": of_critic}
        return critic.values(policy.decoder, parameters, hidden_BTD, rows), hidden_BTD

    return jax.jit(read, static_argnums=0)


@pytest.fixture(scope="session")
def with_head():
    """Returns a critic's parameters with a head that is not 0."""

    def with_head(critic_params):
        kernel = np.random.default_rng(0).normal(size=32).astype(np.float32)
        head = {"kernel": jnp.asarray(kernel), "bias": jnp.float32(0.5)}
        return critic_params | {"value": head}

    return with_head
