import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner import ratio
from rl4p.learner.ratio import RatioOptions, token_covariance
from tests.support.losses import LOSSES


def test_what_is_outside_the_mask_is_never_read(make_batch):
    batch = make_batch([[1, 1, 1]] * 2, [[-1, -2, -np.inf]] * 2, mask=[[1, 1, 0], [0, 0, 0]])
    logprobs = jnp.asarray([[-0.5, -3.0, -np.inf], [np.nan, -np.inf, np.inf]])
    log = ratio.log_ratio(logprobs, batch.scores["proximal_logprobs"], batch)
    np.testing.assert_allclose(log, [[0.5, -1, 0], [0, 0, 0]])
    np.testing.assert_allclose(ratio.sequence_sum(logprobs, batch), [[-3.5], [0]])
    np.testing.assert_allclose(ratio.sequence_mean(logprobs, batch), [[-1.75], [0]])
    np.testing.assert_array_equal(ratio.sequence_lengths(batch, logprobs), [[2], [1]])


def test_the_exponential_is_bounded_and_flat_beyond():
    x = jnp.asarray([-1e4, -1.0, 0.0, 1e4])
    np.testing.assert_allclose(
        ratio.clamped_exp(x), [2.0611537e-9, 0.36787944, 1, 4.8516520e8], rtol=1e-6
    )
    slope = jax.grad(lambda x: ratio.clamped_exp(x).sum())(x)
    np.testing.assert_allclose(slope, [0, 0.36787944, 1, 0], rtol=1e-6)


def test_tokens_that_no_policy_drew_have_the_proximal_logprobs(make_batch):
    batch = make_batch([[1, 1]], [[-1, -2]], behaviour=[[-3, 0]])
    versions = jnp.asarray([[4, -1]], jnp.int32)
    trajectories = dataclasses.replace(batch.trajectories, policy_version_BT=versions)
    batch = dataclasses.replace(batch, trajectories=trajectories)
    np.testing.assert_array_equal(ratio.sampler_logprobs(batch), [[-3, -2]])


def test_advantages_outside_the_mask_are_nothing(make_batch):
    batch = make_batch([[2, np.nan], [np.inf, -3]], [[0, 0]] * 2, mask=[[1, 0], [0, 1]])
    np.testing.assert_array_equal(ratio.masked_advantages(batch), [[2, 0], [0, -3]])


def test_the_surrogate_is_clipped_on_the_side_where_the_advantage_pushes():
    """The bounds are 0.9 and 1.3."""
    ratios = jnp.asarray([0.5, 0.95, 1.2, 1.5] * 2)
    advantages = jnp.repeat(jnp.asarray([2.0, -2.0]), 4)
    loss, extras = ratio.clipped_surrogate(ratios, advantages, 0.1, 0.3)
    np.testing.assert_allclose(loss, [-1, -1.9, -2.4, -2.6, 1.8, 1.9, 2.4, 3], rtol=1e-6)
    np.testing.assert_array_equal(extras["clip_high"], [0, 0, 0, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(extras["clip_low"], [0, 0, 0, 0, 1, 0, 0, 0])


def test_lengths_have_the_type_of_what_they_divide(make_batch):
    batch = make_batch([[1, 1]], [[0, 0]])
    assert ratio.sequence_lengths(batch, jnp.zeros(1, jnp.bfloat16)).dtype == jnp.bfloat16


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


WITH_RATIO = sorted(name for name, x in LOSSES.items() if isinstance(x, RatioOptions))
LOGPROBS = np.log([[0.5, 0.3, 0.2], [0.4, 0.6, 0.9]])
PROXIMAL = np.log([[0.45, 0.35, 0.25], [0.4, 0.5, 0.8]])
BEHAVIOUR = np.log([[0.3, 0.5, 0.4], [0.5, 0.7, 0.95]])


def test_the_losses_with_a_ratio_have_the_option():
    names = {"cispo", "dppo", "gmpo", "gspo", "luspo", "ppo", "sapo", "topr", "vespo"}
    assert {name.split("-")[0] for name in WITH_RATIO} == names


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", WITH_RATIO)
def test_the_old_policy_is_the_proximal_one_or_the_one_that_sampled(make_batch, name):
    def slope(old_policy, proximal, behaviour, version=0):
        update = dataclasses.replace(LOSSES[name], old_policy=old_policy)
        batch = make_batch([[1.0] * 3, [-1.0] * 3], proximal, behaviour=behaviour, version=version)
        return np.asarray(jax.grad(lambda x: update(x, batch)[0].sum())(jnp.asarray(LOGPROBS)))

    to_proximal = slope("proximal", PROXIMAL, BEHAVIOUR)
    to_behaviour = slope("behaviour", PROXIMAL, BEHAVIOUR)
    assert not np.allclose(to_proximal, to_behaviour)
    np.testing.assert_array_equal(to_proximal, slope("proximal", PROXIMAL, -PROXIMAL))
    np.testing.assert_array_equal(to_behaviour, slope("behaviour", -PROXIMAL, BEHAVIOUR))
    # No policy sampled these tokens.
    np.testing.assert_array_equal(to_proximal, slope("behaviour", PROXIMAL, BEHAVIOUR, version=-1))
