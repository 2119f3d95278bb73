"""What holds for every correction, at the options of its YAML."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

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
