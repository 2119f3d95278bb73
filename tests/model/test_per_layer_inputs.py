"""Tests the inputs of layers by the formula, in NumPy."""

import jax
import numpy as np
import pytest

from rl4p.model.decoder import Decoder
from rl4p.model.per_layer_inputs import fresh_inputs, per_layer_inputs
from tests.golden.cases import decoder_config


def test_the_formula():
    c = decoder_config("gemma4_shared")
    L, D, P = c.layers, c.width, c.per_layer_width
    random = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: random.normal(size=x.shape).astype(np.float32), fresh_inputs(c, jax.random.key(0))
    )
    tokens = random.integers(0, c.vocabulary, (2, 3)).astype(np.int32)
    x = random.normal(size=(2, 3, D)).astype(np.float32)

    def norm(x):
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True))

    ours = per_layer_inputs(c, params, tokens, x, norm)
    assert ours.shape == (L, 2, 3, P)
    for layer in range(L):
        part = slice(layer * P, (layer + 1) * P)
        context = x @ params["projection"]["kernel"][:, part] * D**-0.5
        own = params["embedding"][tokens][..., part] * P**0.5
        expected = (norm(context) + own) / 2**0.5
        np.testing.assert_allclose(ours[layer], expected, atol=1e-5)


@pytest.mark.slow
def test_a_decoder_has_them_if_it_has_a_width_for_them():
    fresh = {
        case: Decoder(config=decoder_config(case)).init for case in ("gemma4", "gemma4_shared")
    }
    shapes = {case: jax.eval_shape(init, jax.random.key(0)) for case, init in fresh.items()}
    assert "per_layer" not in shapes["gemma4"]
    assert shapes["gemma4_shared"]["per_layer"]["embedding"].shape == (64, 5 * 16)
    assert shapes["gemma4_shared"]["per_layer"]["norm"]["scale"].shape == (16,)
