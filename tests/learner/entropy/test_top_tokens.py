import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.entropy.top_tokens import TopTokens

ENTROPIES = jnp.asarray([[0.1, 2.0, 0.5, 9.0], [0.5, 1.0, 9.0, np.nan]])
MASK = jnp.asarray([[1, 1, 1, 0], [1, 1, 0, 0]], bool)


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        (0.2, [[0, 1, 0, 0], [0, 0, 0, 0]]),
        (0.1, [[0, 1, 0, 0], [0, 0, 0, 0]]),  # at least one token
        (0.4, [[0, 1, 0, 0], [0, 1, 0, 0]]),
        (0.6, [[0, 1, 1, 0], [1, 1, 0, 0]]),  # two tokens are equal: both are kept
        (1.0, [[1, 1, 1, 0], [1, 1, 0, 0]]),
    ],
)
def test_the_most_uncertain_share_of_the_masks_tokens(share, kept):
    entropy = TopTokens(share=share)
    np.testing.assert_array_equal(entropy.select(ENTROPIES, MASK), kept)
    turned = entropy.select(ENTROPIES[::-1, ::-1], MASK[::-1, ::-1])
    np.testing.assert_array_equal(turned[::-1, ::-1], kept)


def test_there_is_no_bonus():
    entropy = TopTokens()
    assert entropy.selects
    assert not entropy.active
    assert not hasattr(entropy, "initial_state")
    assert entropy.coefficient({}) == 0
    assert not entropy.select(ENTROPIES, jnp.zeros_like(MASK)).any()


def test_the_entropy_is_asked_for():
    assert TopTokens.needs == {"entropy"}
