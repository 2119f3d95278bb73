"""Tests the gated convolution; `test_convolution.py` tests the convolution by itself."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from rl4p.model.decoder_config import ConvolutionConfig
from rl4p.model.mixers.gated_convolution import GatedConvolution

D = 6


def test_a_convolution_between_two_gates():
    mixer = GatedConvolution(
        ConvolutionConfig(kernel=3, bias=True), D, partial(nn.Dense, dtype=jnp.float32)
    )
    x, ones = jax.random.normal(jax.random.key(0), (1, 9, D)), jnp.ones((1, 9), jnp.int32)
    params = jax.jit(mixer.init)(jax.random.key(1), x, ones)["params"]
    params["convolution_bias"] += 0.3
    y, state = jax.jit(mixer.apply)({"params": params}, x, ones)
    params = jax.tree.map(np.asarray, params)

    def project(name, x):
        return x @ params[name]["kernel"] + params[name]["bias"][None]

    x = np.asarray(x)
    inputs = project("input_gate", x[0]) * project("value", x[0])
    before = np.concatenate([np.zeros((2, D)), inputs])
    mixed = sum(params["convolution"][None, :, 0, i] * before[i : i + 9] for i in range(3)) + 0.3
    expected = project("output", project("output_gate", x[0]) * mixed)
    np.testing.assert_allclose(y[0], expected, atol=1e-5)
    np.testing.assert_allclose(state.inputs_BDk[0], inputs[-2:].T, atol=1e-6)


def test_a_sequence_goes_on_from_its_state():
    mixer = GatedConvolution(ConvolutionConfig(), D, partial(nn.Dense, dtype=jnp.float32))
    x, ones = jax.random.normal(jax.random.key(0), (2, 9, D)), jnp.ones((2, 9), jnp.int32)
    params, apply = jax.jit(mixer.init)(jax.random.key(1), x, ones), jax.jit(mixer.apply)
    whole, last = apply(params, x, ones)
    x, ones = np.asarray(x), np.asarray(ones)
    state, parts = mixer.empty_state(mixer.config, D, 2), []
    for start, end in ((0, 5), (5, 6), (6, 9)):
        part, state = apply(params, x[:, start:end], ones[:, start:end], state)
        parts.append(part)
    np.testing.assert_allclose(jnp.concatenate(parts, 1), whole, atol=1e-6)
    np.testing.assert_allclose(state.inputs_BDk, last.inputs_BDk, atol=1e-6)
