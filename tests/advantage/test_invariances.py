"""What holds for every advantage, and what holds for those that compare with the group."""

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given

from rl4p.advantage.constant import Constant
from rl4p.advantage.grpo import GRPO
from rl4p.advantage.rloo import RLOO

GROUP_RELATIVE = [GRPO(), GRPO(ddof=0), RLOO()]
ALL = [*GROUP_RELATIVE, Constant()]
COMPILED = {advantage: jax.jit(advantage) for advantage in ALL}

# Eight samples in groups of three and five, whose members stand in any order.
GROUPS = (6, 6, 6, 1, 1, 1, 1, 1)


@pytest.fixture(scope="module")
def run(make_trajectories, make_rewards):
    def run(advantage, total, valid=(1,) * 8, group_ids=GROUPS, order=slice(None)):
        """Advantages of the first response token, and whether they are right on all the others."""
        trajectories = make_trajectories((8, 3, 2, 5, 1, 8, 2, 6), group_ids=group_ids)
        batch = trajectories, make_rewards(total, valid)
        batch = jax.tree.map(lambda x: x[order], batch)
        advantages = np.asarray(COMPILED[advantage](*batch))
        mask = np.asarray(batch[0].response_mask_BT)
        np.testing.assert_array_equal(advantages, np.where(mask, advantages[:, 8:9], 0))
        assert advantages.dtype == np.float32
        assert np.isfinite(advantages).all()
        return advantages[:, 8]

    return run


each = pytest.mark.parametrize("advantage", ALL, ids=str)
each_relative = pytest.mark.parametrize("advantage", GROUP_RELATIVE, ids=str)


@each
@given(
    total=st.lists(st.integers(-3, 3), min_size=8, max_size=8),
    valid=st.lists(st.booleans(), min_size=8, max_size=8),
    order=st.permutations(range(8)),
    names=st.permutations(range(8)),
)
def test_advantages_move_with_their_samples_whatever_the_order_and_the_ids(
    run, advantage, total, valid, order, names
):
    total = np.where(valid, np.float32(total) / 7, 0)
    plain = run(advantage, total, valid)
    renamed = [names[group] for group in GROUPS]
    shuffled = run(advantage, total, valid, renamed, np.asarray(order))
    np.testing.assert_allclose(shuffled, plain[np.asarray(order)], rtol=1e-6, atol=1e-6)


@each
def test_an_invalid_sample_has_none_and_counts_for_nothing(run, advantage):
    rest = run(advantage, (1, 0, 0, 0, 1, 2, 0, 0), valid=(1, 1, 0, 1, 1, 1, 0, 0))
    np.testing.assert_array_equal(rest[[2, 6, 7]], 0)
    # The same with the invalid ones in a group of their own.
    apart = (6, 6, 0, 1, 1, 1, 0, 0)
    alone = run(
        advantage, (1, 0, 0, 0, 1, 2, 0, 0), valid=(1, 1, 0, 1, 1, 1, 0, 0), group_ids=apart
    )
    np.testing.assert_allclose(rest, alone, rtol=1e-6)


@each_relative
@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, 0.9, 1 / 3, 1e-8, 1e8, -0.7])
def test_equal_rewards_give_exactly_zero(run, advantage, value):
    """The mean of three times 0.9 is not 0.9, and that of seven times 0.1 is not 0.1."""
    np.testing.assert_array_equal(run(advantage, (value,) * 8, group_ids=(2,) * 7 + (5,)), 0)
    np.testing.assert_array_equal(run(advantage, (value,) * 8), 0)
    np.testing.assert_array_equal(run(advantage, (value,) * 8, valid=(1, 0, 1, 1, 1, 0, 1, 1)), 0)


@each_relative
def test_a_sample_without_a_valid_sibling_has_none(run, advantage):
    alone = run(advantage, np.arange(8) + 1, group_ids=np.arange(8))
    np.testing.assert_array_equal(alone, 0)
    one_left = run(advantage, (5, 0, 0, 1, 2, 3, 4, 5), valid=(1, 0, 0, 1, 1, 1, 1, 1))
    np.testing.assert_array_equal(one_left[:3], 0)
    assert (one_left[3:] != 0).sum() == 4


@each
def test_nothing_valid_gives_nothing(run, advantage):
    np.testing.assert_array_equal(run(advantage, (0,) * 8, valid=(0,) * 8), 0)


@each_relative
def test_a_group_sums_to_nothing_and_ignores_a_shift(run, advantage):
    total = np.asarray([1, 0, 0, 3, 1, 0, 0, 1])
    plain, shifted = run(advantage, total), run(advantage, total + 4)
    np.testing.assert_allclose([plain[:3].sum(), plain[3:].sum()], 0, atol=1e-6)
    np.testing.assert_allclose(plain, shifted, atol=1e-5)
    assert (np.sign(plain[:3]) == [1, -1, -1]).all()
