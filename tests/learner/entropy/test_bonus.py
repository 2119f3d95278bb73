import jax.numpy as jnp

from rl4p.learner.entropy.bonus import Bonus


def test_the_coefficient_stays():
    entropy, mask = Bonus(alpha=0.02), jnp.asarray([[True, False]])
    assert entropy.active
    assert not Bonus(alpha=0.0).active
    assert not entropy.selects
    assert entropy.select(jnp.ones((1, 2)), mask) is mask
    assert not hasattr(entropy, "initial_state")
    assert entropy.coefficient({}) == jnp.float32(0.02)
