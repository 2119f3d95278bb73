import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.optimizer.lion import Lion

pytestmark = pytest.mark.mixed_dtypes


def test_two_updates_by_hand():
    """After a gradient of 2, 0.9 x 0.5 x 2 + 0.1 g changes its sign at g = -9; mu uses b2 = 0.5."""
    transform = Lion(b1=0.9, b2=0.5, max_grad_norm=0, weight_decay=0.1).transform()
    params = {"kernel": jnp.full((1, 3), 4.0)}
    state = transform.init(params)
    first, state = transform.update({"kernel": jnp.asarray([[2.0, 2.0, 0.0]])}, state, params)
    np.testing.assert_allclose(first["kernel"], [[-1 - 0.4, -1 - 0.4, -0.4]], rtol=1e-6)
    second, state = transform.update({"kernel": jnp.asarray([[-8.9, -9.1, 0.0]])}, state, params)
    np.testing.assert_allclose(second["kernel"], [[-1 - 0.4, 1 - 0.4, -0.4]], rtol=1e-6)
    np.testing.assert_allclose(state[0].mu["kernel"], [[-3.95, -4.05, 0]], rtol=1e-6)


def test_the_moment_dtype_is_of_the_moment():
    state = Lion(moment_dtype="bfloat16", max_grad_norm=0).transform()
    assert state.init({"bias": jnp.ones(2)})[0].mu["bias"].dtype == jnp.bfloat16
