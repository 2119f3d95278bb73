import jax.numpy as jnp
import numpy as np

from rl4p.learner.covariance import token_covariance


def test_by_hand_and_outside_the_mask_nothing(make_batch):
    """Advantages minus their mean 0: (3, -1, -1, -1). Logprobs minus -2: (1, 0, -1, 0)."""
    batch = make_batch(
        [[3, -1, np.nan], [-1, -1, np.nan]],
        [[-1, -2, np.nan], [-3, -2, -np.inf]],
        mask=[[1, 1, 0]] * 2,
    )
    np.testing.assert_allclose(token_covariance(batch), [[3, 0, 0], [1, 0, 0]], atol=1e-6)


def test_no_tokens_have_none(make_batch):
    covariance_BT = token_covariance(make_batch([[3, -1]], [[-1, -2]], mask=[[0, 0]]))
    np.testing.assert_array_equal(covariance_BT, jnp.zeros((1, 2)))


def test_both_are_centred(make_batch):
    """Advantages 5 and 1 minus 3, times logprobs -1 and -3 minus -2: 2 x 1 and -2 x -1."""
    np.testing.assert_allclose(token_covariance(make_batch([[5, 1]], [[-1, -3]])), [[2, 2]])
