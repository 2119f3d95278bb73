"""Compares mixers in float32 with torch functions of transformers in float64: `make parity`."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.mixers import convolution, delta
from tests.support.random_models import in_float64

pytestmark = pytest.mark.parity


@pytest.mark.parametrize("function", ["chunk", "recurrent"])
@pytest.mark.parametrize(("T", "decay"), [(7, 1), (150, 1), (150, 40)])
def test_the_gated_delta_rule_and_its_gradient(function, T, decay):
    import torch
    from transformers.models.qwen3_next import modeling_qwen3_next as theirs

    rule = getattr(theirs, f"torch_{function}_gated_delta_rule")
    random = np.random.default_rng(T)
    B, K, H, k, v = 2, 2, 6, 16, 24
    shapes = (B, T, K, k), (B, T, K, k), (B, T, H, v), (B, T, H), (B, T, H), (B, H, k, v)
    arguments = [np.float32(random.normal(size=shape)) for shape in shapes]
    arguments[3], arguments[4] = -decay * np.abs(arguments[3]), 1 / (1 + np.exp(-arguments[4]))
    weight = np.float32(random.normal(size=(B, T, H, v)))

    tensors = [torch.tensor(np.float64(x), requires_grad=True) for x in arguments]
    with in_float64():
        y, memory = rule(
            *tensors[:5],
            initial_state=tensors[5],
            output_final_state=True,
            use_qk_l2norm_in_kernel=True,
        )
    ((y * torch.tensor(weight)).sum() + memory.sin().sum()).backward()

    def loss(*arguments):
        ones = jnp.ones((B, T), jnp.int32)
        y, memory = delta.delta_rule(
            *arguments[:5], convolution.sequence_numbers(ones), arguments[5]
        )
        return jnp.sum(y * weight) + jnp.sum(jnp.sin(memory)), (y, memory)

    gradients, ours = jax.jit(jax.grad(loss, range(6), has_aux=True))(*arguments)
    for our, their in zip(ours, (y, memory), strict=True):
        their = their.detach().numpy()
        np.testing.assert_allclose(our, their, atol=1e-6 * np.abs(their).max())
    for our, tensor in zip(gradients, tensors, strict=True):
        their = tensor.grad.numpy()
        np.testing.assert_allclose(our, their, atol=1e-5 * np.abs(their).max())
