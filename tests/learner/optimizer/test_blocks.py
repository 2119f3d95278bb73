import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rl4p.learner.optimizer.blocks import blockwise, is_inner_matrix, is_matrix, stacked_axes

# name: (shape, is_matrix, is_inner_matrix, stacked_axes); L = 2, E = 3
LEAVES = {
    "embedding": ((5, 4), True, False, 0),
    "head": ((5, 4), True, False, 0),
    "score": ((1, 4), True, False, 0),
    "norm/scale": ((4,), False, False, 0),
    "layers/query/kernel": ((2, 4, 4), True, True, 1),
    "layers/query/bias": ((2, 4), False, False, 1),
    "layers/query/lora_a": ((2, 4, 1), True, True, 1),
    "layers/query/lora_b": ((2, 1, 4), True, True, 1),
    "layers/query_norm/scale": ((2, 4), False, False, 1),
    "layers/experts/router": ((2, 4, 3), True, True, 1),
    "layers/experts/gate": ((2, 3, 4, 6), True, True, 2),
    "layers/experts/up": ((2, 3, 4, 6), True, True, 2),
    "layers/experts/down": ((2, 3, 6, 4), True, True, 2),
    "value/kernel": ((4,), False, False, 0),
    "value/bias": ((), False, False, 0),
}


def tree(column):
    nested = {}
    for path, row in LEAVES.items():
        *parents, name = path.split("/")
        node = nested
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = column(row)
    return nested


PARAMS = tree(lambda row: jnp.ones(row[0]))


def test_every_leaf_is_told_by_its_name():
    assert is_matrix(PARAMS) == tree(lambda row: row[1])
    assert is_inner_matrix(PARAMS) == tree(lambda row: row[2])
    assert stacked_axes(PARAMS) == tree(lambda row: row[3])


def test_every_parameter_of_the_decoder_is_told_apart(params):
    axes = stacked_axes(params)
    for path, matrix in jax.tree_util.tree_leaves_with_path(is_matrix(params)):
        stacked = path[0].key == "layers"
        leaf, leaf_axes = params, axes
        for entry in path:
            leaf, leaf_axes = leaf[entry.key], leaf_axes[entry.key]
        assert matrix == (leaf.ndim == 2 + stacked)
        assert leaf_axes == stacked


@pytest.mark.mixed_dtypes
def test_a_transform_sees_one_block_at_a_time():
    """Each block is clipped to the norm 1, which gives 1 / sqrt(block size) everywhere."""
    transform = blockwise(optax.chain(optax.clip_by_global_norm(1.0), optax.trace(0.5)))
    state, update = transform.init(PARAMS), jax.jit(transform.update)
    for total in (1.0, 1.5):
        updates, state = update(jax.tree.map(lambda x: 3 * jnp.ones_like(x), PARAMS), state, PARAMS)
        expected = tree(
            lambda row, total=total: np.full(row[0], total / np.prod(row[0][row[3] :]) ** 0.5)
        )
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), updates, expected)


def test_the_parameters_are_asked_for():
    transform = blockwise(optax.identity())
    with pytest.raises(ValueError, match="needs the parameters"):
        transform.update(PARAMS, transform.init(PARAMS))
