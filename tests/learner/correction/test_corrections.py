"""Tests that hold for every correction, with the options of its YAML."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from rl4p.learner.correction.sequence_mask import SequenceMask
from rl4p.learner.correction.sequence_truncate import SequenceTruncate
from rl4p.learner.correction.token_mask import TokenMask
from rl4p.learner.correction.token_truncate import TokenTruncate

CONF = Path(__file__).resolve().parents[3] / "conf" / "correction"
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
