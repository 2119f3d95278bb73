import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.entropy.adaptive import Adaptive

ENTROPY = Adaptive(target=0.2, step=0.005, alpha=0.02, maximum=0.03)


@pytest.mark.parametrize(
    ("measured", "coefficients"),
    [
        ((), [0.02]),
        ((0.1,), [0.02, 0.025]),
        ((0.1, 0.1, 0.1), [0.02, 0.025, 0.03, 0.03]),  # limited by the maximum
        ((0.2,), [0.02, 0.02]),  # at the target the coefficient stays and applies
        ((0.9,), [0.02, 0.0]),  # above the target it does not apply
        ((0.9, 0.1), [0.02, 0.0, 0.02]),  # it has fallen to 0.015 meanwhile, and rises from there
        ((0.9,) * 6 + (0.1,), [0.02] + [0] * 6 + [0.005]),  # never below 0
        ((0.1, np.nan), [0.02, 0.025, 0.025]),
    ],
)
def test_it_acts_below_the_target_and_moves_by_steps(measured, coefficients):
    memory = ENTROPY.initial_state()
    got = [ENTROPY.coefficient(memory)]
    for entropy in measured:
        memory = jax.jit(ENTROPY.next_state)(memory, jnp.float32(entropy))
        got.append(ENTROPY.coefficient(memory))
    np.testing.assert_allclose(got, coefficients, rtol=1e-5, atol=1e-9)
    shapes = [(x.shape, x.dtype) for x in (*memory.values(), *ENTROPY.initial_state().values())]
    assert set(shapes) == {((), np.dtype("float32"))}


def test_every_token_keeps_its_gradient():
    mask = jnp.asarray([[True, False]])
    assert ENTROPY.active
    assert not ENTROPY.selects
    assert ENTROPY.select(jnp.ones((1, 2)), mask) is mask


def test_before_the_first_step_the_entropy_counts_as_below_the_target():
    assert Adaptive(target=0.0, alpha=0.02).coefficient(ENTROPY.initial_state()) == np.float32(0.02)
    memory = ENTROPY.next_state(ENTROPY.initial_state(), jnp.float32(0.75))
    assert memory["entropy"] == 0.75
