import jax.numpy as jnp

from rl4p.entropy.none import NONE


def test_nothing_is_done():
    entropy, mask = NONE(), jnp.asarray([[True, False]])
    assert not entropy.active
    assert not entropy.selects
    assert entropy.select(jnp.ones((1, 2)), mask) is mask
    assert entropy.next_state(entropy.initial_state(), jnp.float32(1)) == {}
    assert entropy.coefficient({}) == 0
