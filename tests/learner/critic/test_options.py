from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rl4p.learner.critic.options import CriticOptions

CONF = Path(__file__).resolve().parents[3] / "conf" / "critic"


@pytest.mark.parametrize(
    ("clip", "value", "target", "loss", "slope"),
    [
        # the old value is 1
        (0.5, 1.25, 2.0, 0.28125, -0.75),
        (0.5, 1.75, 2.0, 0.125, 0.0),  # moved too far toward its target: 1.5 counts
        (0.5, 0.0, 2.0, 2.0, -2.0),  # moved away from it: the unclipped square counts
        (0.5, 1.75, 0.0, 1.53125, 1.75),
        (None, 1.75, 2.0, 0.03125, -0.25),
    ],
)
def test_a_value_moves_so_far_and_no_farther(clip, value, target, loss, slope):
    critic = CriticOptions(coefficient=1.0, clip=clip)
    run = jax.value_and_grad(lambda x: critic.loss(x, jnp.float32(1), jnp.float32(target)))
    np.testing.assert_allclose(run(jnp.float32(value)), (loss, slope), rtol=1e-6)


def test_half_the_square_is_weighed_by_the_coefficient():
    """The loss is 0.25 / 2 x 3^2 on both sides; without a clip the old value does not matter."""
    critic = CriticOptions(coefficient=0.25, clip=None)
    run = jax.value_and_grad(lambda x: critic.loss(x, jnp.float32(9), jnp.float32(2)))
    np.testing.assert_allclose(run(jnp.float32(5)), (1.125, 0.75))
    np.testing.assert_allclose(run(jnp.float32(-1)), (1.125, -0.75))


@pytest.mark.parametrize("name", ["none", "shared", "separate"])
def test_the_yaml_has_the_defaults_of_the_class(name):
    critic = instantiate(OmegaConf.load(CONF / f"{name}.yaml"))
    assert critic == type(critic)()
