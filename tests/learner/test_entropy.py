from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rl4p.learner.entropy import NONE, Adaptive, Bonus, TopTokens

CONF = Path(__file__).resolve().parents[2] / "conf" / "entropy"


@pytest.mark.parametrize("path", sorted(CONF.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_yaml_has_the_defaults_of_the_class(path):
    option = instantiate(OmegaConf.load(path))
    assert option == type(option)()


def test_nothing_is_done():
    entropy, mask = NONE(), jnp.asarray([[True, False]])
    assert not entropy.active
    assert not entropy.selects
    assert entropy.select(jnp.ones((1, 2)), mask) is mask
    assert not hasattr(entropy, "initial_state")
    assert entropy.coefficient({}) == 0


def test_the_coefficient_stays():
    entropy, mask = Bonus(alpha=0.02), jnp.asarray([[True, False]])
    assert entropy.active
    assert not Bonus(alpha=0.0).active
    assert not entropy.selects
    assert entropy.select(jnp.ones((1, 2)), mask) is mask
    assert not hasattr(entropy, "initial_state")
    assert entropy.coefficient({}) == jnp.float32(0.02)


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


ENTROPIES = jnp.asarray([[0.1, 2.0, 0.5, 9.0], [0.5, 1.0, 9.0, np.nan]])
MASK = jnp.asarray([[1, 1, 1, 0], [1, 1, 0, 0]], bool)


@pytest.mark.parametrize(
    ("share", "kept"),
    [
        (0.2, [[0, 1, 0, 0], [0, 0, 0, 0]]),
        (0.1, [[0, 1, 0, 0], [0, 0, 0, 0]]),  # at least one token
        (0.4, [[0, 1, 0, 0], [0, 1, 0, 0]]),
        (0.6, [[0, 1, 1, 0], [1, 1, 0, 0]]),  # two tokens are equal: both are kept
        (1.0, [[1, 1, 1, 0], [1, 1, 0, 0]]),
    ],
)
def test_the_most_uncertain_share_of_the_masks_tokens(share, kept):
    entropy = TopTokens(share=share)
    np.testing.assert_array_equal(entropy.select(ENTROPIES, MASK), kept)
    turned = entropy.select(ENTROPIES[::-1, ::-1], MASK[::-1, ::-1])
    np.testing.assert_array_equal(turned[::-1, ::-1], kept)


def test_there_is_no_bonus():
    entropy = TopTokens()
    assert entropy.selects
    assert not entropy.active
    assert not hasattr(entropy, "initial_state")
    assert entropy.coefficient({}) == 0
    assert not entropy.select(ENTROPIES, jnp.zeros_like(MASK)).any()


def test_the_entropy_is_asked_for():
    assert TopTokens.needs == {"entropy"}
