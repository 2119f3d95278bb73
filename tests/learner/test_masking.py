from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner import masking
from rl4p.learner.masking import (
    group_log_softmax,
    group_total,
    largest,
    loss_mask,
    masked_statistics,
    masked_sum,
    response_lengths,
    returns_to_go,
    share_count,
    spread_over_tokens,
    token_rewards,
    whiten,
)

group_statistics = jax.jit(masking.group_statistics, static_argnames=("ddof", "groups"))


def test_what_is_masked_does_not_count_even_where_it_is_not_finite():
    values = jnp.asarray([[1.0, 2.0, np.nan], [4.0, np.inf, 9.0]])
    mask = jnp.asarray([[True, True, False], [True, False, True]])
    assert masked_sum(values, mask) == 16
    assert masked_sum(values, jnp.zeros_like(mask)) == 0


@pytest.mark.parametrize(("ddof", "pair", "triple"), [(0, 1.0, 6**0.5), (1, 2**0.5, 3.0)])
def test_groups_are_found_by_id_and_may_be_uneven(ddof, pair, triple):
    """Squares: (1 - 2)^2 + (3 - 2)^2 = 2, divided by 2 or 1; 9 + 0 + 9 = 18, divided by 3 or 2."""
    values, groups = jnp.asarray([1.0, 0.0, 3.0, 3.0, 6.0]), jnp.asarray([4, 2, 2, 4, 2])
    group = group_statistics(values, jnp.ones(5, bool), groups, ddof=ddof)
    np.testing.assert_array_equal(group.count_B, [2, 3, 3, 2, 3])
    np.testing.assert_allclose(group.mean_B, [2, 3, 3, 2, 3])
    np.testing.assert_allclose(group.std_B, [pair, triple, triple, pair, triple], rtol=1e-6)
    assert not group.equal_B.any()


def test_an_invalid_sample_leaves_its_group_and_may_hold_anything():
    values, groups = jnp.asarray([1.0, np.nan, 5.0, np.inf, 2.0]), jnp.asarray([0, 0, 0, 3, 3])
    group = group_statistics(values, jnp.isfinite(values), groups)
    np.testing.assert_array_equal(group.count_B, [2, 2, 2, 1, 1])
    np.testing.assert_array_equal(group.mean_B, [3, 3, 3, 2, 2])
    np.testing.assert_array_equal(group.std_B, [2, 2, 2, 0, 0])
    np.testing.assert_array_equal(group.equal_B, [False, False, False, True, True])
    np.testing.assert_array_equal(group.highest_B, [5, 5, 5, 2, 2])
    np.testing.assert_array_equal(group.lowest_B, [1, 1, 1, 2, 2])
    np.testing.assert_array_equal(group.difference_B, [-2, 0, 2, 0, 0])


def test_a_group_of_equal_values_is_equal_though_its_mean_rounds():
    values = jnp.full(7, 0.1, jnp.float32)
    group = group_statistics(values, jnp.ones(7, bool), jnp.zeros(7, jnp.int32), ddof=1)
    assert group.equal_B.all()
    np.testing.assert_array_equal(group.difference_B, 0)
    nothing = group_statistics(values, jnp.zeros(7, bool), jnp.zeros(7, jnp.int32), ddof=1)
    assert nothing.equal_B.all()
    assert all(jnp.isfinite(x).all() for x in nothing)


def test_a_value_is_written_on_the_response_tokens_only(make_trajectories):
    trajectories = make_trajectories((2, 0, 8))
    spread = spread_over_tokens(jnp.asarray([1.5, 2.0, -1.0]), trajectories)
    expected = np.zeros((3, 16))
    expected[0, 8:10], expected[2, 8:] = 1.5, -1.0
    np.testing.assert_array_equal(spread, expected)


def test_there_may_be_more_groups_than_samples():
    values, groups = jnp.asarray([1.0, 2.0, 4.0]), jnp.asarray([9, 7, 9])
    np.testing.assert_array_equal(group_total(values, groups, 10), [5, 2, 5])
    group = group_statistics(values, jnp.ones(3, bool), groups, groups=10)
    np.testing.assert_array_equal(group.mean_B, [2.5, 2, 2.5])


@pytest.mark.parametrize(("ddof", "std"), [(0, 12**0.5 / 2), (1, 2.0)])
def test_a_masked_deviation_is_over_the_mask(ddof, std):
    """1, 1, 1, 5 has mean 2 and squares 1 + 1 + 1 + 9, divided by 4 or 3."""
    values = jnp.asarray([[1.0, np.nan, 1.0], [np.inf, 1.0, 5.0]])
    mask = jnp.isfinite(values)
    statistics = masked_statistics(values, mask, ddof=ddof)
    np.testing.assert_allclose(statistics.mean, 2)
    np.testing.assert_allclose(statistics.std, std, rtol=1e-6)
    assert not statistics.equal
    white = whiten(values, mask, epsilon=0.5, ddof=ddof)
    expected = np.asarray([[-1, 0, -1], [0, -1, 3]]) / (std + 0.5)
    np.testing.assert_allclose(white, expected, rtol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 7])
def test_equal_values_are_white_as_exact_zeros(count):
    values, mask = jnp.full(8, 0.1), jnp.arange(8) < count
    assert masked_statistics(values, mask).equal
    np.testing.assert_array_equal(whiten(values, mask, epsilon=1e-8, ddof=1), 0)


def test_a_softmax_of_each_group():
    """The odds are 1 : 3; a sample alone has the probability 1. Large values do not overflow."""
    values = jnp.asarray([0.0, 1e4, np.log(3), np.nan, 1e4 + 1, -1e4], jnp.float32)
    groups = jnp.asarray([2, 5, 2, 5, 0, 0])
    log_softmax = group_log_softmax(values, jnp.isfinite(values), groups)
    expected = [np.log(1 / 4), 0, np.log(3 / 4), 0, 0, -20001]
    np.testing.assert_allclose(log_softmax, expected, rtol=1e-5)


@pytest.fixture
def two_turns(make_trajectories, make_rewards):
    """Returns a row with response tokens 8, 10 and 11, one with none, and an invalid one."""
    trajectories = make_trajectories((4, 0, 4))
    mask = trajectories.response_mask_BT.at[0, 9].set(False)
    rewards = make_rewards((5, 7, 0), valid=(1, 1, 0))
    return replace(trajectories, response_mask_BT=mask), rewards


def test_the_loss_mask_is_the_response_without_the_invalid(two_turns):
    np.testing.assert_array_equal(response_lengths(two_turns[0]), [3, 0, 4])
    expected = np.zeros((3, 16), bool)
    expected[0, [8, 10, 11]] = True
    np.testing.assert_array_equal(loss_mask(*two_turns), expected)


def test_a_reward_comes_with_the_last_token(two_turns):
    expected = np.zeros((3, 16))
    expected[0, 11] = 5
    np.testing.assert_array_equal(token_rewards(*two_turns), expected)
    expected[0, [8, 10]] = 5
    np.testing.assert_array_equal(returns_to_go(*two_turns), expected)


def test_rewards_of_tokens_come_with_them_and_the_rest_with_the_last(two_turns):
    """Of a reward of 5 the tokens get -1, 0 and 2; the last one also gets the remaining 4."""
    trajectories, rewards = two_turns
    tokens = np.full((3, 16), np.nan, np.float32)
    tokens[0, [8, 10, 11]] = -1, 0, 2
    rewards = replace(rewards, tokens_BT=jnp.asarray(tokens))
    expected = np.zeros((3, 16))
    expected[0, [8, 10, 11]] = -1, 0, 6
    np.testing.assert_array_equal(token_rewards(trajectories, rewards), expected)
    expected[0, [8, 10, 11]] = 5, 6, 6
    np.testing.assert_array_equal(returns_to_go(trajectories, rewards), expected)


def test_one_value_has_no_deviation_whatever_it_is_divided_by():
    statistics = masked_statistics(jnp.asarray([3.0, 9.0]), jnp.asarray([True, False]), ddof=1)
    assert (statistics.mean, statistics.std) == (3, 0)
    nothing = masked_statistics(jnp.asarray([3.0]), jnp.asarray([False]), ddof=1)
    assert (nothing.mean, nothing.std) == (0, 0)
    assert nothing.equal
    alone = group_statistics(jnp.asarray([3.0, 9.0]), jnp.ones(2, bool), jnp.arange(2), ddof=1)
    np.testing.assert_array_equal(alone.std_B, 0)


def test_a_group_of_invalid_samples_has_neither_highest_nor_lowest():
    """The other group is below 0; the 0 of its invalid sample is not its highest value."""
    values, groups = jnp.asarray([-3.0, 7.0, -1.0, 0.0]), jnp.asarray([2, 0, 2, 2])
    group = group_statistics(values, jnp.asarray([True, False, True, False]), groups)
    np.testing.assert_array_equal(group.highest_B, [-1, 0, -1, -1])
    np.testing.assert_array_equal(group.lowest_B, [-3, 0, -3, -3])
    np.testing.assert_array_equal(group.count_B, [2, 0, 2, 2])
    np.testing.assert_array_equal(group.mean_B, [-2, 0, -2, -2])


@pytest.mark.parametrize("value", [-0.7, 0.7])
def test_what_is_masked_does_not_make_equal_values_unequal(value):
    """A masked value counts as 0 in the sums; 0 is above or below the other values."""
    values, mask = jnp.full(8, value), jnp.arange(8) < 7
    assert masked_statistics(values, mask).equal
    assert group_statistics(values, mask, jnp.zeros(8, int)).equal_B.all()


def test_a_softmax_leaves_the_invalid_out_of_the_sum():
    """The odds are 1 : 3, beside an invalid sample of 100."""
    values = jnp.asarray([0.0, np.log(3), 100.0], jnp.float32)
    log_softmax = group_log_softmax(values, jnp.asarray([True, True, False]), jnp.zeros(3, int))
    np.testing.assert_allclose(log_softmax, [np.log(1 / 4), np.log(3 / 4), 0], rtol=1e-5)


VALUES = jnp.asarray([[3.0, 1.0, 2.0], [2.0, np.nan, 9.0]])
CANDIDATES = jnp.asarray([[1, 1, 1], [1, 0, 0]], bool)


@pytest.mark.parametrize(
    ("count", "chosen"),
    [
        (1, [[1, 0, 0], [0, 0, 0]]),
        (2, [[1, 0, 1], [1, 0, 0]]),  # two tokens are equal: both are chosen
        (3, [[1, 0, 1], [1, 0, 0]]),
        (4, [[1, 1, 1], [1, 0, 0]]),
        (9, [[1, 1, 1], [1, 0, 0]]),
    ],
)
def test_the_largest_of_the_candidates(count, chosen):
    np.testing.assert_array_equal(largest(VALUES, CANDIDATES, jnp.int32(count)), chosen)


def test_no_candidates():
    assert not largest(VALUES, jnp.zeros_like(CANDIDATES), jnp.int32(1)).any()


@pytest.mark.parametrize(
    ("tokens", "share", "count"), [(4, 0.5, 2), (4, 0.7, 2), (10, 0.7, 7), (4, 0.1, 1), (0, 0.5, 1)]
)
def test_a_share_is_rounded_down_to_at_least_one(tokens, share, count):
    assert share_count(jnp.arange(12).reshape(3, 4) < tokens, share) == count
