import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.kl.adaptive import Adaptive

KL = Adaptive(beta=0.5, target=0.1, limit=0.2, horizon=10.0)


@pytest.mark.parametrize(
    ("measured", "coefficient"),
    [
        (0.1, 0.5),
        (0.11, 0.505),  # the error is 0.1
        (0.09, 0.495),
        (5.0, 0.51),  # the error is 49, clipped to 0.2
        (-5.0, 0.49),
        (np.nan, 0.5),
        (np.inf, 0.5),
    ],
)
def test_it_moves_toward_the_target(measured, coefficient):
    memory = jax.jit(KL.next_state)(KL.initial_state(), jnp.float32(measured))
    np.testing.assert_allclose(KL.coefficient(memory), coefficient, rtol=1e-6)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), [KL.initial_state(), memory])
    assert shapes[0] == shapes[1]


def test_a_reference_is_always_asked_for():
    assert KL.active
    assert KL.needs == {"reference_logprobs"}
