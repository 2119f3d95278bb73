import jax.numpy as jnp
import numpy as np

from rl4p.learner.kl.none import NONE


def test_nothing_is_asked_for_and_nothing_added():
    kl, x = NONE(), jnp.asarray([[-1.0, -2.0]])
    assert not kl.active
    assert kl.needs == set()
    assert kl.placement == "in_loss"
    np.testing.assert_array_equal(kl.penalty(x, x - 1, x - 2), [[0, 0]])
    assert not hasattr(kl, "initial_state")
    assert kl.coefficient({}) == 0
