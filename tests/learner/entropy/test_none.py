import jax.numpy as jnp

from rl4p.learner.entropy.none import NONE


def test_nothing_is_done():
    entropy, mask = NONE(), jnp.asarray([[True, False]])
    assert not entropy.active
    assert not entropy.selects
    assert entropy.select(jnp.ones((1, 2)), mask) is mask
    assert not hasattr(entropy, "initial_state")
    assert entropy.coefficient({}) == 0
