import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.optimizer.adafactor import Adafactor

pytestmark = pytest.mark.mixed_dtypes


def updates(gradients, params, **options):
    """Returns the last update and the state after it."""
    transform = Adafactor(max_grad_norm=0, **options).transform()
    state = transform.init(params)
    for gradient in gradients:
        update, state = jax.jit(transform.update)(gradient, state, params)
    return update, state


def layers(x, name="kernel"):
    return {"layers": {"query": {name: jnp.asarray(x, jnp.float32)}}}


def direction(update, name="kernel"):
    return -np.asarray(update["layers"]["query"][name])


def test_a_factored_step_by_hand():
    """g^2 = [1 4; 9 16] has the row means 2.5 and 12.5, column means 5 and 10, mean 7.5.

    nu = [2.5 x 5, 2.5 x 10; 12.5 x 5, 12.5 x 10] / 7.5 = [5/3, 10/3; 25/3, 50/3].
    """
    gradient = np.asarray([[1.0, -2.0], [3.0, 4.0]])
    update, _ = updates(
        [layers([gradient])],
        layers(np.full((1, 2, 2), 2.0)),
        min_factored_size=1,
        clip_rms=100.0,
        weight_decay=0.1,
    )
    u = gradient / np.sqrt(np.asarray([[5.0, 10.0], [25.0, 50.0]]) / 3)
    np.testing.assert_allclose(direction(update), [u * 2 + 0.2], rtol=1e-5)


def test_two_steps_without_factors_by_hand():
    """Gradients 2 and 4 give nu = 4, then d 4 + (1 - d) 16 with d = 1 - 2^-0.5."""
    params = layers(np.full((1, 1, 1), 3.0))
    options = {"decay_exponent": 0.5, "clip_rms": 100.0}
    gradients = [layers([[[2.0]]]), layers([[[4.0]]])]
    d = 1 - 2**-0.5
    u = 4 / np.sqrt(4 * d + 16 * (1 - d))
    np.testing.assert_allclose(direction(updates(gradients, params, **options)[0]), u * 3, 1e-5)
    absolute, _ = updates(gradients, params, relative=False, **options)
    np.testing.assert_allclose(direction(absolute), u, 1e-5)
    averaged, _ = updates(gradients, params, relative=False, momentum=0.9, **options)
    np.testing.assert_allclose(direction(averaged), 0.9 * 0.1 * 1 + 0.1 * u, 1e-5)


def test_the_direction_is_clipped_in_each_block():
    """One layer has the gradient 1, then 4: u = 4 / sqrt(d + 16 (1 - d)), clipped to 1."""
    params = layers(np.ones((2, 2, 2)))
    second = np.stack([np.ones((2, 2)), np.full((2, 2), 4.0)])
    update, _ = updates([layers(np.ones((2, 2, 2))), layers(second)], params)
    np.testing.assert_allclose(direction(update), np.ones((2, 2, 2)), rtol=1e-5)


@pytest.mark.parametrize("size", [1, 128], ids=["factored", "whole"])
@pytest.mark.parametrize(
    ("shape", "name"),
    # more layers than rows, experts, and vectors
    [((5, 2, 3), "kernel"), ((2, 4, 2, 3), "gate"), ((2, 3), "bias")],
    ids=str,
)
def test_a_block_is_as_if_it_were_alone(shape, name, size):
    random = np.random.default_rng(0)
    axes = 1 if name != "gate" else 2
    blocks = random.lognormal(0, 2, (2, *shape[:axes], *[1] * (len(shape) - axes)))
    gradient, param = (scale * random.normal(size=shape) for scale in blocks)
    update, _ = updates([layers(gradient, name)] * 2, layers(param, name), min_factored_size=size)
    for index in np.ndindex(*shape[:axes]):
        keep = tuple(slice(i, i + 1) for i in index)
        alone, _ = updates(
            [layers(gradient[keep], name)] * 2, layers(param[keep], name), min_factored_size=size
        )
        np.testing.assert_allclose(
            direction(update, name)[keep], direction(alone, name), rtol=1e-4, atol=1e-6
        )


def test_a_factored_moment_is_a_row_and_a_column_of_each_matrix():
    state = (
        Adafactor(min_factored_size=8, max_grad_norm=0)
        .transform()
        .init(layers(np.ones((3, 8, 16))))
    )
    sizes = sorted(leaf.shape for leaf in jax.tree.leaves(state))
    assert sizes == [(3,), (3, 1), (3, 8), (3, 16)]


def test_the_moment_dtype_is_of_the_momentum():
    params = layers(np.ones((1, 2, 2)))
    _, state = updates([params], params, momentum=0.9, moment_dtype="bfloat16")
    assert sorted(str(leaf.dtype) for leaf in jax.tree.leaves(state)).count("bfloat16") == 1


def test_a_parameter_of_zero_moves_as_one_of_a_thousandth():
    """The first direction is the sign of the gradient, and 0 for a gradient of 0."""
    gradient = [[[2.0, -4.0], [0.0, 8.0]]]
    update, _ = updates([layers(gradient)], layers(np.zeros((1, 2, 2))), clip_rms=100.0)
    np.testing.assert_allclose(direction(update), 1e-3 * np.sign(gradient), rtol=1e-5)


def test_a_direction_is_scaled_down_to_the_limit_of_its_root_mean_square():
    """A direction of signs has the root mean square 1."""
    params = layers(np.full((1, 2, 2), 2.0))
    update, _ = updates([params], params, clip_rms=0.25)
    np.testing.assert_allclose(direction(update), np.full((1, 2, 2), 0.5), rtol=1e-5)
