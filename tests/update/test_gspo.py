import numpy as np
import pytest

from rl4p.update.gspo import GSPO


@pytest.mark.parametrize("form", ["sequence", "token"])
@pytest.mark.parametrize(
    ("advantage", "loss", "slope", "clipped"),
    [
        (1.0, -1.2, 0.0, {"clip_high"}),
        (-1.0, 1.3498588, 1.3498588, set()),
        (0.0, 0.0, 0.0, set()),
    ],
)
def test_the_ratio_is_the_geometric_mean(
    make_batch, evaluate, form, advantage, loss, slope, clipped
):
    """The log-ratios 0.2 and 0.4 have the mean 0.3, whose exponential is 1.3498588."""
    batch = make_batch([[advantage] * 3], [[-2, -3, -4]], mask=[[1, 1, 0]])
    update = GSPO(clip_low=0.2, clip_high=0.2, form=form)
    loss_BT, extras, slope_BT = evaluate(update, [[-1.8, -2.6, 5.0]], batch)
    np.testing.assert_allclose(loss_BT, [[loss, loss, 0]], rtol=1e-6)
    np.testing.assert_allclose(slope_BT, [[slope, slope, 0]], rtol=1e-6)
    assert {name for name, x in extras.items() if x[0, :2].all()} == clipped


def test_low_ratios_are_clipped_for_bad_sequences(make_batch, evaluate):
    """The mean log-ratio is -0.3, whose exponential is 0.7408182."""
    batch = make_batch([[-1.0, -1.0], [1.0, 1.0]], [[-2, -3], [-2, -3]])
    update = GSPO(clip_low=0.2, clip_high=0.2)
    loss_BT, extras, slope_BT = evaluate(update, [[-2.2, -3.4], [-2.2, -3.4]], batch)
    np.testing.assert_allclose(loss_BT, [[0.8] * 2, [-0.7408182] * 2], rtol=1e-6)
    np.testing.assert_allclose(slope_BT, [[0] * 2, [-0.7408182] * 2], rtol=1e-6)
    np.testing.assert_array_equal(extras["clip_low"], [[1, 1], [0, 0]])


def test_the_token_form_gives_each_token_its_own_advantage(make_batch, evaluate):
    batch = make_batch([[1.0, -3.0]], [[-2, -3]])
    slopes = [evaluate(GSPO(form=form), [[-2.0, -3.0]], batch)[2] for form in ("token", "sequence")]
    np.testing.assert_allclose(slopes[0], [[-1, 3]])
    np.testing.assert_allclose(slopes[1], [[1, 1]])  # minus the mean of both


def test_the_default_aggregation_weighs_every_sequence_the_same(make_batch, evaluate):
    """Losses are -1 (three tokens) and 2 (one), and count half; slopes are 1/2 -A / length."""
    batch = make_batch([[1] * 3, [-2] * 3], [[-1] * 3] * 2, mask=[[1, 1, 1], [1, 0, 0]])
    loss_BT, _, slope_BT = evaluate(GSPO(), [[-1] * 3] * 2, batch, weighted=True)
    np.testing.assert_allclose(loss_BT.sum(), 0.5, rtol=1e-6)
    np.testing.assert_allclose(slope_BT, [[-1 / 6] * 3, [1, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize("form", ["sequence", "token"])
def test_either_side_has_a_clip_of_its_own(make_batch, evaluate, form):
    """The ratios are e^0.3 = 1.3499 and e^-0.3 = 0.7408, clipped to 1.3 and to 0.9."""
    batch = make_batch([[1.0], [-1.0]], [[-2.0], [-2.0]])
    update = GSPO(clip_low=0.1, clip_high=0.3, form=form)
    loss_BT, _, slope_BT = evaluate(update, [[-1.7], [-2.3]], batch)
    np.testing.assert_allclose(loss_BT, [[-1.3], [0.9]], rtol=1e-6)
    np.testing.assert_array_equal(slope_BT, 0)
