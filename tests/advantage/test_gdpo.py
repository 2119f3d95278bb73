from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.advantage.gdpo import GDPO
from rl4p.base.errors import InputError


@pytest.fixture
def batch(make_trajectories, make_rewards):
    """Returns two groups of two; a small and a large term disagree in the second group."""
    terms = {
        "correct": jnp.asarray([0, 1, 1, 0, 0], jnp.float32),
        "length": jnp.asarray([0, 100, 0, 300, np.nan], jnp.float32),
    }
    rewards = make_rewards((9, 9, 9, 9, 0), valid=(1, 1, 1, 1, 0))
    trajectories = make_trajectories((1, 8, 2, 3, 4), group_ids=(1, 1, 0, 0, 0))
    return trajectories, replace(rewards, terms=terms)


# A normalised pair is -+0.5 |x - y| / (|x - y| / sqrt 2) = -+0.7071 for any x and y.
def test_by_hand(batch, per_sample):
    """The sums are -+1.4142 and 0, with variance 4 / 3. Both terms weigh the same."""
    advantages = per_sample(batch[0], jax.jit(GDPO())(*batch))
    expected = np.asarray([-np.sqrt(2), np.sqrt(2), 0, 0, 0]) / np.sqrt(4 / 3)
    np.testing.assert_allclose(advantages, expected, rtol=1e-3, atol=1e-3)


def test_weights_are_by_name(batch, per_sample):
    """With weight 3 for a term the sums are -+4 x 0.7071 and -+2 x 0.7071, with variance 20 / 3."""
    advantages = per_sample(batch[0], jax.jit(GDPO(weights={"length": 3.0}))(*batch))
    expected = np.sqrt(0.5) * np.asarray([-4, 4, -2, 2, 0]) / np.sqrt(20 / 3)
    np.testing.assert_allclose(advantages, expected, rtol=1e-3)


def test_a_weight_of_no_term_is_named(batch):
    with pytest.raises(InputError, match=r"\['lenght'\].*\['correct', 'length'\]"):
        GDPO(weights={"lenght": 3.0})(*batch)


def test_epsilon_is_added_to_both_deviations(make_trajectories, make_rewards, per_sample):
    """The groups' deviations sqrt 2 and sqrt 8, and that of the batch, each increase by 1/2."""
    trajectories = make_trajectories((1, 8, 2, 3), group_ids=(1, 1, 0, 0))
    rewards = make_rewards((0, 2, 0, 4))
    advantages = per_sample(trajectories, GDPO(epsilon=0.5)(trajectories, rewards))
    pairs = np.asarray([-1, 1, -2, 2]) / (np.repeat([np.sqrt(2), np.sqrt(8)], 2) + 0.5)
    np.testing.assert_allclose(advantages, pairs / (pairs.std(ddof=1) + 0.5), rtol=1e-6)


def test_a_term_is_normalised_over_the_samples_to_which_it_applies(
    make_trajectories, make_rewards, per_sample
):
    """The length applies to two of three samples of a group, and to none of the other group."""
    nan = np.nan
    trajectories = make_trajectories((1, 8, 2, 3, 4), group_ids=(1, 1, 1, 0, 0))
    rewards = make_rewards((9,) * 5)
    terms = {
        "correct": jnp.asarray([0, 0, 3, 0, 5], jnp.float32),
        "length": jnp.asarray([2, nan, 4, nan, nan], jnp.float32),
    }
    advantages = per_sample(
        trajectories, jax.jit(GDPO())(trajectories, replace(rewards, terms=terms))
    )
    half, third = np.sqrt(0.5), 1 / np.sqrt(3)
    sums = np.asarray([-third - half, -third, 2 * third + half, -half, half])
    np.testing.assert_allclose(advantages, sums / sums.std(ddof=1), rtol=1e-3)
