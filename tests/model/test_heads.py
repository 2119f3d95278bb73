import jax
import jax.numpy as jnp
import numpy as np

from rl4p.model.heads import init_value_head, scores, values

HIDDEN_BTD = np.float32([[[1, 0], [0, 1], [2, 3]], [[5, 5], [-1, 2], [0, 0]]])


def test_values_are_those_of_the_state_before_each_token():
    """With w = (2, -1), b = 0.5: 2 x 1 + 0.5, then -1 + 0.5; the last state predicts no token."""
    params = {"value": {"kernel": np.float32([2, -1]), "bias": np.float32(0.5)}}
    expected = [[0, 2.5, -0.5], [0, 5.5, -3.5]]
    np.testing.assert_array_equal(values(params, HIDDEN_BTD), expected)


def test_a_fresh_value_head_says_zero_and_learns_from_the_first_step():
    params = {"value": init_value_head(2)}
    assert not values(params, HIDDEN_BTD).any()
    gradient = jax.grad(lambda p: jnp.sum(values(p, HIDDEN_BTD)))(params)["value"]
    np.testing.assert_array_equal(gradient["kernel"], [5, 8])  # (1 + 0 + 5 - 1, 0 + 1 + 5 + 2)
    assert gradient["bias"] == 4


def test_values_are_float32_of_rounded_activations_and_a_rounded_head():
    head = {"kernel": jnp.ones(2, jnp.bfloat16), "bias": jnp.zeros((), jnp.bfloat16)}
    hidden_BTD = jnp.asarray([[[256, 1], [0, 0]]], jnp.bfloat16)
    value_BT = values({"value": head}, hidden_BTD)
    assert value_BT.dtype == jnp.float32
    np.testing.assert_array_equal(value_BT, [[0, 257]])  # bfloat16 cannot represent 257


def test_scores_have_one_number_per_label_and_any_leading_axes():
    params = {"score": np.float32([[1, 0], [0, 1], [1, -1]])}
    np.testing.assert_array_equal(scores(params, HIDDEN_BTD[0, 2]), [2, 3, -1])
    assert scores(params, HIDDEN_BTD).shape == (2, 3, 3)
    half = scores(params, jnp.asarray([257.0, 2], jnp.float32).astype(jnp.bfloat16))
    assert half.dtype == jnp.float32
