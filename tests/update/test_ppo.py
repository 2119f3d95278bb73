import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import TrainingBatch
from rl4p.update.ppo import PPO

UPDATE = PPO(clip_low=0.2, clip_high=0.28)


@jax.jit
def run(logprobs_BT, batch):
    """Returns losses, extras, and the slope of the sum of losses."""

    def total(logprobs_BT):
        loss_BT, extras = UPDATE(logprobs_BT, batch)
        return loss_BT.sum(), (loss_BT, extras)

    slope_BT, (loss_BT, extras) = jax.grad(total, has_aux=True)(logprobs_BT)
    return loss_BT, extras, slope_BT


def batch(trajectories, advantage, proximal):
    shape = trajectories.tokens_BT.shape
    return TrainingBatch(
        trajectories=trajectories,
        advantages_BT=jnp.full(shape, advantage),
        loss_mask_BT=jnp.ones(shape, bool),
        scores={"proximal_logprobs": jnp.full(shape, proximal)},
    )


@pytest.mark.parametrize(
    ("advantage", "ratio", "loss", "gradient", "clipped"),
    [
        # the slope with respect to log pi is -A rho, or 0 where the clip applies
        (2.0, 1.0, -2.0, -2.0, None),
        (-2.0, 1.0, 2.0, 2.0, None),
        (2.0, 1.1, -2.2, -2.2, None),
        (2.0, 1.5, -2.56, 0.0, "clip_high"),
        (2.0, 0.5, -1.0, -1.0, None),  # a good token may regain lost probability
        (-2.0, 0.9, 1.8, 1.8, None),
        (-2.0, 0.5, 1.6, 0.0, "clip_low"),
        (-2.0, 1.5, 3.0, 3.0, None),  # a bad token loses gained probability, without a bound
        (0.0, 1.5, 0.0, 0.0, None),
    ],
)
def test_both_sides_of_the_clip_and_both_signs(
    make_trajectories, advantage, ratio, loss, gradient, clipped
):
    given = batch(make_trajectories((1,)), advantage, -1.25)
    loss_BT, extras, slope_BT = run(jnp.full((1, 16), -1.25 + np.log(ratio)), given)
    np.testing.assert_allclose(loss_BT, loss, rtol=1e-6)
    np.testing.assert_allclose(slope_BT, gradient, rtol=1e-6)
    assert {name: bool(x.all()) for name, x in extras.items()} == {
        name: name == clipped for name in ("clip_low", "clip_high")
    }


@pytest.mark.parametrize("distance", [1e3, -1e3])
@pytest.mark.parametrize("advantage", [1.0, -1.0, 0.0])
def test_a_ratio_out_of_all_bounds_is_finite(make_trajectories, distance, advantage):
    given = batch(make_trajectories((1,)), advantage, -1e3)
    loss_BT, _, slope_BT = run(jnp.full((1, 16), -1e3 + distance), given)
    assert jnp.isfinite(loss_BT).all()
    assert jnp.isfinite(slope_BT).all()


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        ({}, set()),
        ({"epochs": 2}, {"proximal_logprobs"}),
        ({"minibatches": 4}, {"proximal_logprobs"}),
    ],
)
def test_old_logprobs_are_asked_for_only_where_they_differ(options, needs):
    assert PPO(**options).needs == needs


@pytest.mark.parametrize(
    ("options", "advantage", "ratio", "loss", "gradient", "clipped"),
    [
        ({"dual_clip": 3.0}, -2.0, 2.0, 4.0, 4.0, set()),
        ({"dual_clip": 3.0}, -2.0, 5.0, 6.0, 0.0, {"clip_dual"}),
        ({"dual_clip": 3.0}, 2.0, 5.0, -2.56, 0.0, {"clip_high"}),
        ({"delta": 4.0}, -2.0, 2.0, 4.0, 4.0, set()),
        ({"delta": 4.0}, -2.0, 5.0, 8.0, 0.0, {"clip_delta"}),
        ({"delta": 4.0}, -0.5, 5.0, 2.0, 0.0, {"clip_delta"}),
        ({"delta": 4.0}, 2.0, 5.0, -2.56, 0.0, {"clip_high"}),
        ({"delta": 1.1}, 2.0, 1.2, -2.2, 0.0, set()),  # below 1 + clip_high it limits good tokens
        ({"delta": 1.1}, -2.0, 1.2, 2.4, 2.4, {"clip_delta"}),
        ({"delta": 4.0, "dual_clip": 3.0}, -2.0, 5.0, 6.0, 0.0, {"clip_delta", "clip_dual"}),
    ],
)
def test_bad_tokens_that_gained_much_probability_are_bounded_on_request(
    make_batch, evaluate, options, advantage, ratio, loss, gradient, clipped
):
    update = PPO(clip_low=0.2, clip_high=0.28, **options)
    given = make_batch([[advantage]], [[-1.25]])
    loss_BT, extras, slope_BT = evaluate(update, [[-1.25 + np.log(ratio)]], given)
    np.testing.assert_allclose(loss_BT, [[loss]], rtol=1e-6)
    np.testing.assert_allclose(slope_BT, [[gradient]], rtol=1e-6)
    assert {name for name, x in extras.items() if x.all()} == clipped


@pytest.mark.parametrize("options", [{"delta": 4.0}, {"dual_clip": 3.0}], ids=str)
def test_bad_tokens_that_lost_probability_are_clipped_as_ever(make_batch, evaluate, options):
    """The ratio 1/2 is below the clip range, so the gradient is 0."""
    update = PPO(clip_low=0.2, clip_high=0.28, **options)
    loss_BT, extras, slope_BT = evaluate(
        update, [[-1.25 + np.log(0.5)]], make_batch([[-2]], [[-1.25]])
    )
    np.testing.assert_allclose(loss_BT, [[1.6]], rtol=1e-6)
    np.testing.assert_array_equal(slope_BT, 0)
    assert {name for name, x in extras.items() if x.all()} == {"clip_low"}
