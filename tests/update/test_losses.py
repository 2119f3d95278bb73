"""Tests that hold for every policy loss of the package, with the options of its YAML.

The losses are evaluated in float64, as in the gradient step: `prepare` sees the whole batch, and
everything outside the loss mask is dropped.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.support.losses import CONSTANT_WEIGHT, LOSSES, NAMES, NOT_REINFORCE, NOT_STILL

LENGTHS = (6, 3, 0, 5, 1, 4, 2, 6)
GROUPS = (3, 3, 0, 0, 5, 5, 6, 6)


def losses(*left_out):
    return pytest.mark.parametrize("name", [x for x in LOSSES if x not in set().union(*left_out)])


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def example(make_batch):
    """Returns a function for eight rows in pairs; sampler, reference and step start differ."""

    def make(*, left=0, right=0, order=slice(None), outside=0.0, **changes):
        random = np.random.default_rng(0)
        shape = (8, 8)
        mask = np.arange(8) < np.asarray(LENGTHS)[:, None]
        proximal = random.uniform(-4, -0.5, shape)
        numbers = {
            "logprobs": proximal + random.normal(0, 0.2, shape),
            "advantages": np.repeat([[1.0], [-1.5]] * 4, 8, axis=1),
            "behaviour": proximal + random.normal(0, 0.1, shape),
            "reference_logprobs": proximal + random.normal(0, 0.3, shape),
            "mismatched_log_ratios": random.normal(0.2, 0.3, shape),
            "proximal": proximal,
        } | changes

        def laid_out(x, fill):
            x = np.where(mask, x, fill)
            return np.pad(x, ((0, 0), (left, right)), constant_values=fill)[order]

        numbers = {name: laid_out(x, outside) for name, x in numbers.items()}
        logprobs = numbers.pop("logprobs")
        batch = make_batch(
            numbers.pop("advantages"),
            numbers.pop("proximal"),
            mask=laid_out(mask, False).astype(bool),
            groups=np.asarray(GROUPS)[order],
            **numbers,
        )
        return jnp.asarray(logprobs, jnp.float64), wide(batch)

    def wide(batch):
        """Converts to float64; the numbers were rounded before, so every layout has the same."""
        return jax.tree.map(lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, batch)

    return make


def test_the_yaml_has_the_defaults_of_the_class():
    for name in NAMES:
        assert LOSSES[name] == type(LOSSES[name])(), name


@losses(NOT_REINFORCE)
def test_at_ratio_one_the_gradient_is_that_of_reinforce(example, evaluate, name):
    logprobs, batch = example()
    same = jnp.where(batch.loss_mask_BT, logprobs, 0.0)
    trajectories = dataclasses.replace(batch.trajectories, behaviour_logprobs_BT=same)
    scores = {"proximal_logprobs": same, "reference_logprobs": same}
    batch = dataclasses.replace(batch, trajectories=trajectories, scores=scores)
    reinforce = dataclasses.replace(LOSSES["reinforce"], aggregation=LOSSES[name].aggregation)
    expected = evaluate(reinforce, logprobs, batch, weighted=True)[2]
    slope_BT = evaluate(LOSSES[name], logprobs, batch, weighted=True)[2]
    assert np.abs(expected).sum() > 0.5
    np.testing.assert_allclose(slope_BT, expected, rtol=1e-6, atol=1e-12)


@losses(NOT_STILL)
def test_without_advantages_there_is_no_gradient(example, evaluate, name):
    logprobs, batch = example(advantages=np.zeros((8, 8)))
    loss_BT, _, slope_BT = evaluate(LOSSES[name], logprobs, batch, weighted=True)
    np.testing.assert_array_equal(slope_BT, 0)
    assert np.isfinite(loss_BT).all()


@losses()
def test_nothing_outside_the_mask_matters(example, evaluate, name):
    plain = evaluate(LOSSES[name], *example(), weighted=True)
    for outside in (np.nan, -np.inf):
        other = evaluate(LOSSES[name], *example(outside=outside), weighted=True)
        jax.tree.map(np.testing.assert_array_equal, other, plain)
    np.testing.assert_array_equal(plain[2][2], 0)  # a row without tokens
    assert np.isfinite(plain[0]).all()
    assert np.abs(plain[2]).sum() > 0


@losses()
def test_rows_in_any_order(example, evaluate, name):
    order = np.asarray([5, 2, 7, 0, 3, 6, 1, 4])
    plain = evaluate(LOSSES[name], *example(), weighted=True)
    other = evaluate(LOSSES[name], *example(order=order), weighted=True)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y[order], rtol=1e-6, atol=1e-12), other, plain
    )


@pytest.mark.slow
@losses()
def test_padding_on_both_sides(example, evaluate, name):
    plain = evaluate(LOSSES[name], *example(), weighted=True)
    other = evaluate(LOSSES[name], *example(left=2, right=1), weighted=True)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x[:, 2:10], y, rtol=1e-6, atol=1e-12),
        other,
        plain,
    )


@losses()
def test_groups_apart_are_the_same_as_together(example, evaluate, name):
    """Microbatches contain whole groups, and `prepare` has seen the whole batch."""
    logprobs, batch = example()
    update = LOSSES[name]
    if hasattr(update, "prepare"):
        batch = dataclasses.replace(batch, scores=batch.scores | update.prepare(batch))
    plain = evaluate(update, logprobs, batch, prepared=True)
    for rows in (slice(0, 4), slice(4, 8)):
        part = jax.tree.map(lambda x, rows=rows: x[rows], batch)
        other = evaluate(update, logprobs[rows], part, prepared=True)
        jax.tree.map(
            lambda x, y, rows=rows: np.testing.assert_allclose(x, y[rows], rtol=1e-12),
            other,
            plain,
        )


@losses()
@pytest.mark.parametrize("distance", [1e4, -1e4])
def test_extreme_ratios_are_finite(example, evaluate, name, distance):
    logprobs, _ = example()
    anchors = {
        key: np.full((8, 8), -2.0) for key in ("behaviour", "proximal", "reference_logprobs")
    }
    _, batch = example(**anchors)
    loss_BT, extras, slope_BT = evaluate(LOSSES[name], logprobs + distance, single(batch))
    assert np.isfinite(loss_BT).all()
    assert np.isfinite(slope_BT).all()
    assert all(np.isfinite(x).all() for x in extras.values())


def single(batch):
    return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, batch)


@losses(CONSTANT_WEIGHT)
def test_the_gradient_is_that_of_the_loss_by_finite_differences(example, evaluate, name):
    logprobs, batch = example()
    update = LOSSES[name]
    slope_BT = evaluate(update, logprobs, batch, weighted=True)[2]
    h = 1e-5
    for row, column in np.argwhere(np.asarray(batch.loss_mask_BT)):
        step = np.zeros(logprobs.shape)
        step[row, column] = h
        up, down = (
            evaluate(update, logprobs + sign * step, batch, weighted=True)[0].sum()
            for sign in (1, -1)
        )
        np.testing.assert_allclose(
            slope_BT[row, column], (up - down) / (2 * h), rtol=1e-5, atol=1e-8
        )
