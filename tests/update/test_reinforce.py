import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.types import TrainingBatch
from rl4p.update.ppo import PPO
from rl4p.update.reinforce import Reinforce


def test_the_loss_by_hand_and_its_gradient_is_that_of_ppo_at_ratio_one(make_trajectories):
    trajectories = make_trajectories((2, 1))
    logprobs, advantages = jnp.asarray([[-1.0, -3.0]]), jnp.asarray([[2.0, -0.5]])
    batch = TrainingBatch(
        trajectories=trajectories,
        advantages_BT=advantages,
        loss_mask_BT=jnp.ones((1, 2), bool),
        scores={"proximal_logprobs": logprobs},
    )
    loss, extras = Reinforce()(logprobs, batch)
    np.testing.assert_array_equal(loss, [[2.0, -1.5]])
    assert extras == {}
    slopes = [
        jax.grad(lambda x, u=update: u(x, batch)[0].sum())(logprobs)
        for update in (Reinforce(), PPO())
    ]
    np.testing.assert_array_equal(slopes[0], -advantages)
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-6)
    # It needs no old logprobs and ignores them.
    other = dataclasses.replace(batch, scores={"proximal_logprobs": logprobs - 1})
    np.testing.assert_array_equal(Reinforce()(logprobs, other)[0], loss)
