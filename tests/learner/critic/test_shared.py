import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.critic.shared import Shared


def test_a_head_is_all_that_is_new_and_every_estimate_starts_at_zero(policy, params, read):
    critic = Shared()
    assert critic.active
    assert not critic.own_trunk
    begun = critic.init(policy.decoder, params)
    assert jax.tree.map(jnp.shape, begun) == {"value": {"kernel": (32,), "bias": ()}}
    np.testing.assert_array_equal(read(critic, begun)[0], 0)


def test_a_value_is_read_from_the_activations_of_the_token_before(policy, params, read, with_head):
    of_critic = with_head(Shared().init(policy.decoder, params))
    values_BT, hidden_BTD = jax.device_get(read(Shared(), of_critic))
    expected = hidden_BTD[:, :-1] @ np.asarray(of_critic["value"]["kernel"]) + 0.5
    assert values_BT.dtype == np.float32
    np.testing.assert_allclose(values_BT[:, 1:], expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(values_BT[:, 0], 0)


@pytest.mark.parametrize("detach", [False, True])
def test_its_loss_trains_the_trunk_unless_it_is_detached(policy, params, read, with_head, detach):
    critic = Shared(detach=detach)
    of_critic = with_head(critic.init(policy.decoder, params))

    def total(of_critic, of_policy):
        return jnp.sum(jnp.square(read(critic, of_critic, of_policy)[0]))

    head, trunk = jax.grad(total, argnums=(0, 1))(of_critic, params)
    assert all(x.any() for x in jax.tree.leaves(head))
    assert trunk["layers"]["query"]["kernel"].any() == (not detach)
    assert any(x.any() for x in jax.tree.leaves(trunk)) == (not detach)
