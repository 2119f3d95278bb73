import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.optimizer.adamw import AdamW

pytestmark = pytest.mark.mixed_dtypes


def test_the_first_update_is_the_sign_of_the_gradient():
    """At the first step mu / sqrt(nu) is the sign, for any b1, b2 and learning rate."""
    transform = AdamW(learning_rate=7.0, max_grad_norm=0).transform()
    params = {"kernel": jnp.full((2, 2), 10.0), "bias": jnp.full(2, 10.0)}
    gradient = jax.tree.map(lambda x: jnp.full(x.shape, 0.3), params)
    for leaf in jax.tree.leaves(transform.update(gradient, transform.init(params), params)[0]):
        np.testing.assert_allclose(leaf, -1, rtol=1e-5)


def test_two_updates_by_hand():
    transform = AdamW(b1=0.9, b2=0.99, epsilon=0.1, max_grad_norm=0).transform()
    params = {"kernel": jnp.asarray([1.0])}
    state = transform.init(params)
    _, state = transform.update({"kernel": jnp.asarray([2.0])}, state, params)
    update, _ = transform.update({"kernel": jnp.asarray([-1.0])}, state, params)
    mu = (0.9 * 0.1 * 2 + 0.1 * -1) / (1 - 0.9**2)
    nu = (0.99 * 0.01 * 4 + 0.01 * 1) / (1 - 0.99**2)
    np.testing.assert_allclose(update["kernel"], -mu / (np.sqrt(nu) + 0.1), rtol=1e-4)


@pytest.mark.parametrize("parameter", ["float32", "bfloat16"])
def test_the_moment_dtype_is_of_the_first_moment_only(parameter):
    state = AdamW(moment_dtype="bfloat16", max_grad_norm=0).transform()
    adam = state.init({"kernel": jnp.ones((2, 2), parameter)})[0]
    assert (adam.mu["kernel"].dtype, adam.nu["kernel"].dtype) == (jnp.bfloat16, parameter)


def test_the_decay_is_of_the_parameter_beside_the_direction():
    """The gradient 3 has the direction 1, and the parameter 5 decays by a tenth."""
    transform = AdamW(weight_decay=0.1, max_grad_norm=0).transform()
    params = {"kernel": jnp.full((1, 1), 5.0)}
    update, _ = transform.update({"kernel": jnp.full((1, 1), 3.0)}, transform.init(params), params)
    np.testing.assert_allclose(update["kernel"], [[-1.5]], rtol=1e-5)
