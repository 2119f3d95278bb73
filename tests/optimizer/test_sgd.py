import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.optimizer.sgd import SGD

pytestmark = pytest.mark.mixed_dtypes


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # gradients 2 and -1; decay 0.1 of a parameter at 4
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
