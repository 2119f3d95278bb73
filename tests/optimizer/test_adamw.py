import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.optimizer.adamw import AdamW, is_matrix

pytestmark = pytest.mark.mixed_dtypes

PARAMS = {
    "embedding": jnp.full((2, 2), 10.0),
    "layers": {"query": {"kernel": jnp.full((1, 2, 2), 10.0), "bias": jnp.full((1, 2), 10.0)}},
    "norm": {"scale": jnp.full(2, 10.0)},
}


def first_update(gradient, **options):
    """The update and the optimizer's state after a gradient that is the same everywhere."""
    transform = AdamW(**options).transform()
    tree = jax.tree.map(lambda x: jnp.full(x.shape, gradient), PARAMS)
    return jax.jit(lambda tree: transform.update(tree, transform.init(PARAMS), PARAMS))(tree)


def test_the_first_update_is_the_sign_of_the_gradient():
    """That is mu / sqrt(nu) at the first step, whatever b1, b2 and the learning rate."""
    for leaf in jax.tree.leaves(first_update(0.3, learning_rate=7.0, max_grad_norm=0)[0]):
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


def test_decay_touches_matrices_only():
    decayed, _ = first_update(1e-30, weight_decay=0.1, max_grad_norm=0)
    expected = jax.tree.map(lambda matrix: -1.0 if matrix else 0.0, is_matrix(PARAMS))
    jax.tree.map(lambda x, e: np.testing.assert_allclose(x, e, atol=1e-6), decayed, expected)
    assert is_matrix(PARAMS) == {
        "embedding": True,
        "layers": {"query": {"kernel": True, "bias": False}},
        "norm": {"scale": False},
    }


def test_every_parameter_of_the_decoder_is_told_apart(params):
    for path, matrix in jax.tree_util.tree_leaves_with_path(is_matrix(params)):
        stacked = path[0].key == "layers"
        leaf = params
        for entry in path:
            leaf = leaf[entry.key]
        assert matrix == (leaf.ndim == 2 + stacked)


@pytest.mark.parametrize(("limit", "scale"), [(0.0, 1.0), (100.0, 1.0), (2.0, 0.5)])
def test_a_long_gradient_is_scaled_down_to_the_limit(limit, scale):
    """Twelve entries of 4 / sqrt(12): a norm of 4. The first moment is a tenth of what came in."""
    _, state = first_update(4 / 12**0.5, max_grad_norm=limit)
    (first_moment,) = [
        x for x in jax.tree.leaves(state) if x.shape == (1, 2, 2) and x[0, 0, 0] > 0.05
    ]
    np.testing.assert_allclose(first_moment, 0.1 * scale * 4 / 12**0.5, rtol=1e-5)


def test_the_learning_rate_is_the_schedule():
    optimizer = AdamW(
        learning_rate=2.0, schedule="linear", warmup_steps=4, total_steps=8, final_fraction=0.5
    )
    np.testing.assert_allclose(
        [optimizer.learning_rate_at(s) for s in (0, 4, 6, 8)], [0.5, 2, 1.5, 1]
    )
