"""Tests of all corrections, and of each."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rl4p.learner.correction import NONE, SequenceMask, SequenceTruncate, TokenMask, TokenTruncate

CONF = Path(__file__).resolve().parents[2] / "conf" / "correction"
CORRECTIONS = {path.stem: instantiate(OmegaConf.load(path)) for path in sorted(CONF.glob("*.yaml"))}
MASK = jnp.asarray([[1, 1, 0], [1, 1, 1], [0, 0, 0]], bool)
each = pytest.mark.parametrize("name", CORRECTIONS)


@each
def test_the_yaml_has_the_defaults_of_the_class(name):
    assert CORRECTIONS[name] == type(CORRECTIONS[name])()


@each
def test_on_policy_samples_weigh_one(name):
    weights = CORRECTIONS[name](jnp.zeros((3, 3)), MASK)
    np.testing.assert_array_equal(weights, MASK)
    assert weights.dtype == jnp.float32


@each
@pytest.mark.parametrize("log_w", [1e4, -1e4, -np.inf, np.inf])
def test_extremes_are_finite_and_what_is_outside_the_mask_is_never_read(name, log_w):
    weights = CORRECTIONS[name](jnp.where(MASK, log_w, np.nan), MASK)
    assert np.isfinite(weights).all()
    np.testing.assert_array_equal(weights[~MASK], 0)


@each
def test_no_gradient_flows(name):
    slope = jax.grad(lambda x: CORRECTIONS[name](x, MASK).sum())(jnp.full((3, 3), 0.004))
    np.testing.assert_array_equal(slope, 0)


@each
def test_rows_in_any_order_and_any_padding(name):
    log_w = np.random.default_rng(0).normal(0, 0.01, (3, 3)).astype(np.float32)
    log_w[0, 0] = 3.0
    plain = CORRECTIONS[name](jnp.asarray(log_w), MASK)
    order = np.asarray([2, 0, 1])
    padded = np.pad(log_w[order], ((0, 0), (2, 1)), constant_values=np.nan)
    mask = jnp.pad(MASK[order], ((0, 0), (2, 1)))
    other = CORRECTIONS[name](jnp.asarray(padded), mask)
    np.testing.assert_allclose(other[:, 2:5], plain[order], rtol=1e-6)


@pytest.mark.parametrize(
    ("correction", "largest", "smallest"),
    [
        (TokenTruncate(cap=1e9), np.exp(20), np.exp(-20)),
        (TokenMask(low=0.0, high=1e9), np.exp(20), np.exp(-20)),
        (SequenceMask(low=0.0, high=1e9, weighted=True), np.exp(20), np.exp(-20)),
        (SequenceTruncate(cap=1e9), np.exp(20), np.exp(-20)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_log_weights_are_bounded_at_twenty_and_not_before(correction, largest, smallest):
    """A log weight of 19 is inside the bounds; 100 and -100 are not."""
    log_w = jnp.asarray([[19.0], [100.0], [-19.0], [-100.0]])
    weights = correction(log_w, jnp.ones((4, 1), bool))
    expected = [[np.exp(19)], [largest], [np.exp(-19)], [smallest]]
    np.testing.assert_allclose(weights, expected, rtol=1e-5)


@pytest.mark.parametrize("correction", [TokenMask(low=1.0, high=1.0), SequenceMask(low=1, high=1)])
def test_the_bounds_are_inside(correction):
    mask = jnp.ones((1, 2), bool)
    np.testing.assert_array_equal(correction(jnp.zeros((1, 2)), mask), 1)
    np.testing.assert_array_equal(correction(jnp.full((1, 2), 1e-3), mask), 0)
    np.testing.assert_array_equal(correction(jnp.full((1, 2), -1e-3), mask), 0)


def test_every_token_of_the_mask_weighs_one():
    log_w = jnp.asarray([[0.5, -1e4, np.nan]])
    weights = NONE()(log_w, jnp.asarray([[True, True, False]]))
    np.testing.assert_array_equal(weights, [[1, 1, 0]])
    assert weights.dtype == jnp.float32


def test_weights_are_cut_at_the_cap():
    log_w = jnp.log(jnp.asarray([[0.25, 1.0, 1.9, 2.1]]))
    weights = TokenTruncate(cap=2.0)(log_w, jnp.asarray([[True] * 4]))
    np.testing.assert_allclose(weights, [[0.25, 1, 1.9, 2]], rtol=1e-6)


def test_weights_outside_the_bounds_are_nothing():
    log_w = jnp.log(jnp.asarray([[0.49, 0.51, 1.0, 4.9, 5.1]]))
    weights = TokenMask()(log_w, jnp.asarray([[True] * 5]))
    np.testing.assert_allclose(weights, [[0, 0.51, 1, 4.9, 0]], rtol=1e-6)
    both = TokenMask(low=0.0, high=1.0)(jnp.zeros((1, 1)), jnp.asarray([[True]]))
    np.testing.assert_array_equal(both, 1)  # weights equal to a bound are kept


def test_every_token_weighs_the_product_up_to_the_cap():
    """The products are 0.75, 3 (capped at 2), 0.7 (one token), and that of no token."""
    w = jnp.asarray([[1.5, 0.5], [1.5, 2.0], [0.7, 9.0], [9.0, 9.0]])
    mask = jnp.asarray([[1, 1], [1, 1], [1, 0], [0, 0]], bool)
    weights = SequenceTruncate(cap=2.0)(jnp.log(w), mask)
    np.testing.assert_allclose(weights, [[0.75] * 2, [2] * 2, [0.7, 0], [0, 0]], rtol=1e-6)


# Geometric means: 1 (of 2 and 1/2), 1.2 (of 1.44 and 1), 0.7 (one token), and no token.
W = jnp.asarray([[2.0, 0.5], [1.44, 1.0], [0.7, 9.0], [9.0, 9.0]])
KEPT = jnp.asarray([[1, 1], [1, 1], [1, 0], [0, 0]], bool)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[1, 1], [0, 0], [0, 0], [0, 0]]),
        ({"low": 0.75}, [[1, 1], [0, 0], [0, 0], [0, 0]]),  # padding does not count in the mean
        ({"high": 1.21}, [[1, 1], [1, 1], [0, 0], [0, 0]]),
        ({"low": 0.69, "high": 1.01}, [[1, 1], [0, 0], [1, 0], [0, 0]]),
        ({"high": 1.21, "weighted": True}, [[2, 0.5], [1.44, 1], [0, 0], [0, 0]]),
    ],
)
def test_a_sequence_stays_or_goes_by_its_geometric_mean(options, expected):
    np.testing.assert_allclose(SequenceMask(**options)(jnp.log(W), KEPT), expected, rtol=1e-6)


def test_weights_of_tokens_have_no_gradient_either():
    """A token of a kept sequence is weighed by its own w, which is a constant."""
    correction = SequenceMask(low=0.5, high=2.0, weighted=True)
    slope = jax.grad(lambda x: correction(x, KEPT[:1]).sum())(jnp.log(W[:1]))
    np.testing.assert_array_equal(slope, 0)
