import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.learner.ratio_options import RatioOptions
from tests.support.losses import LOSSES

WITH_RATIO = sorted(name for name, x in LOSSES.items() if isinstance(x, RatioOptions))
LOGPROBS = np.log([[0.5, 0.3, 0.2], [0.4, 0.6, 0.9]])
PROXIMAL = np.log([[0.45, 0.35, 0.25], [0.4, 0.5, 0.8]])
BEHAVIOUR = np.log([[0.3, 0.5, 0.4], [0.5, 0.7, 0.95]])


def test_the_losses_with_a_ratio_have_the_option():
    names = {"cispo", "dppo", "gmpo", "gspo", "luspo", "ppo", "sapo", "topr", "vespo"}
    assert {name.split("-")[0] for name in WITH_RATIO} == names


@pytest.mark.parametrize("name", WITH_RATIO)
def test_the_old_policy_is_the_proximal_one_or_the_one_that_sampled(make_batch, name):
    def slope(old_policy, proximal, behaviour, version=0):
        update = dataclasses.replace(LOSSES[name], old_policy=old_policy)
        batch = make_batch([[1.0] * 3, [-1.0] * 3], proximal, behaviour=behaviour, version=version)
        return np.asarray(jax.grad(lambda x: update(x, batch)[0].sum())(jnp.asarray(LOGPROBS)))

    to_proximal = slope("proximal", PROXIMAL, BEHAVIOUR)
    to_behaviour = slope("behaviour", PROXIMAL, BEHAVIOUR)
    assert not np.allclose(to_proximal, to_behaviour)
    np.testing.assert_array_equal(to_proximal, slope("proximal", PROXIMAL, -PROXIMAL))
    np.testing.assert_array_equal(to_behaviour, slope("behaviour", -PROXIMAL, BEHAVIOUR))
    # No policy sampled these tokens.
    np.testing.assert_array_equal(to_proximal, slope("behaviour", PROXIMAL, BEHAVIOUR, version=-1))
