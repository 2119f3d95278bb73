import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.optimizer.sgd import SGD

pytestmark = pytest.mark.mixed_dtypes


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # gradients 2 and -1; a parameter of 4 decays by 0.1 of itself
        ({"momentum": 0.0}, -(-1 + 0.4)),
        ({"momentum": 0.5}, -(0.5 * 2 - 1 + 0.4)),
        ({"momentum": 0.5, "nesterov": True}, -(-1 + 0.5 * (0.5 * 2 - 1) + 0.4)),
        ({"momentum": 0.25, "nesterov": True}, -(-1 + 0.25 * (0.25 * 2 - 1) + 0.4)),
    ],
    ids=str,
)
def test_two_updates_by_hand(options, expected):
    transform = SGD(max_grad_norm=0, weight_decay=0.1, **options).transform()
    params = {"kernel": jnp.full((1, 1), 4.0)}
    state = transform.init(params)
    _, state = transform.update({"kernel": jnp.full((1, 1), 2.0)}, state, params)
    update, _ = transform.update({"kernel": jnp.full((1, 1), -1.0)}, state, params)
    np.testing.assert_allclose(update["kernel"], [[expected]], rtol=1e-6)


def test_without_momentum_there_is_no_state():
    assert not jax.tree.leaves(SGD(momentum=0.0).transform().init({"bias": jnp.ones(3)}))


def test_the_moment_dtype_is_of_the_momentum():
    """The decay of the momentum has this dtype too: 0.9 is 0.8984375 in bfloat16."""
    transform = SGD(moment_dtype="bfloat16", max_grad_norm=0).transform()
    params = {"bias": jnp.ones(2)}
    _, state = transform.update(params, transform.init(params), params)
    update, state = transform.update(params, state, params)
    (trace,) = jax.tree.leaves(state)
    assert (update["bias"].dtype, trace.dtype) == (jnp.float32, jnp.bfloat16)
    np.testing.assert_allclose(update["bias"], -1.8984375, rtol=1e-6)
    np.testing.assert_array_equal(trace.astype(jnp.float32), 1.8984375)
