import jax
import jax.numpy as jnp
import numpy as np

from rl4p.learner.critic.separate import Separate
from rl4p.learner.critic.shared import Shared


def test_it_begins_as_a_copy_of_the_policys_trunk(policy, params, read):
    """The arrays must be distinct, because an update donates each of them once."""
    critic = Separate()
    assert critic.active
    assert critic.own_trunk
    begun = critic.init(policy.decoder, params)
    assert begun.keys() == {"embedding", "layers", "norm", "value"}
    for name in ("embedding", "layers", "norm"):
        jax.tree.map(np.testing.assert_array_equal, begun[name], params[name])
        pairs = zip(jax.tree.leaves(begun[name]), jax.tree.leaves(params[name]), strict=True)
        assert not any(ours is theirs for ours, theirs in pairs)
    np.testing.assert_array_equal(read(critic, begun)[0], 0)


def test_while_the_trunks_are_the_same_it_reads_what_a_shared_critic_reads(
    policy, params, read, with_head
):
    of_critic = with_head(Separate().init(policy.decoder, params))
    separate, shared = (read(critic, of_critic)[0] for critic in (Separate(), Shared()))
    assert np.abs(separate).max() > 0.1
    np.testing.assert_allclose(separate, shared, rtol=1e-5, atol=1e-5)


def test_neither_disturbs_the_other(policy, params, read, with_head):
    """The value has a zero gradient for the policy's parameters, and a gradient for its own."""
    of_critic = with_head(Separate().init(policy.decoder, params))

    def total(of_critic, of_policy):
        return jnp.sum(jnp.square(read(Separate(), of_critic, of_policy)[0]))

    ours, policys = jax.grad(total, argnums=(0, 1))(of_critic, params)
    assert not any(x.any() for x in jax.tree.leaves(policys))
    assert all(x.any() for x in jax.tree.leaves(ours["value"]))
    assert ours["layers"]["query"]["kernel"].any()
    assert ours["embedding"].any()
