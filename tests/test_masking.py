import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p import masking
from rl4p.masking import masked_sum, spread_over_tokens

group_statistics = jax.jit(masking.group_statistics, static_argnames="ddof")


def test_what_is_masked_does_not_count_even_where_it_is_not_finite():
    values = jnp.asarray([[1.0, 2.0, np.nan], [4.0, np.inf, 9.0]])
    mask = jnp.asarray([[True, True, False], [True, False, True]])
    assert masked_sum(values, mask) == 16
    assert masked_sum(values, jnp.zeros_like(mask)) == 0


@pytest.mark.parametrize(("ddof", "pair", "triple"), [(0, 1.0, 6**0.5), (1, 2**0.5, 3.0)])
def test_groups_are_found_by_id_and_may_be_uneven(ddof, pair, triple):
    """(1 - 2)^2 + (3 - 2)^2 = 2 over 2 or 1; 9 + 0 + 9 = 18 over 3 or 2."""
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


def test_a_group_of_equal_values_is_equal_though_its_mean_rounds():
    values = jnp.full(7, 0.1, jnp.float32)
    group = group_statistics(values, jnp.ones(7, bool), jnp.zeros(7, jnp.int32), ddof=1)
    assert group.equal_B.all()
    nothing = group_statistics(values, jnp.zeros(7, bool), jnp.zeros(7, jnp.int32), ddof=1)
    assert nothing.equal_B.all()
    assert all(jnp.isfinite(x).all() for x in nothing)


def test_a_value_is_written_on_the_response_tokens_only(make_trajectories):
    trajectories = make_trajectories((2, 0, 8))
    spread = spread_over_tokens(jnp.asarray([1.5, 2.0, -1.0]), trajectories)
    expected = np.zeros((3, 16))
    expected[0, 8:10], expected[2, 8:] = 1.5, -1.0
    np.testing.assert_array_equal(spread, expected)
