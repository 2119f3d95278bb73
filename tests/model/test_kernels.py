import dataclasses
import re
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.distributed.mesh import Mesh
from rl4p.model.attention import AttentionInputs, attend, visible
from rl4p.model.kernels import SHARED_PROMPT, check_kernel, cudnn, splash
from rl4p.model.scratch import Scratch

B, T, S, H, K, h = 2, 40, 71, 4, 2, 16


@pytest.fixture(scope="module")
def rows():
    """Returns forty tokens after at most 31 prefix keys; in row 0 padding follows both."""
    random = np.random.default_rng(0)
    shapes = (B, T, H, h), (B, K, h, S), (B, K, S, h)
    q, k, v = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
    own = jnp.asarray(np.arange(T) < np.array([[30], [T]]), jnp.int32)
    before = jnp.asarray(np.arange(S - T) < np.array([[10], [S - T]]), jnp.int32)
    keys = jnp.concatenate([before, own], axis=1)
    places = jnp.broadcast_to(jnp.arange(S), (B, S))
    mask = visible(places[:, S - T :], own, places, keys)
    angle = jnp.zeros((1, 1, 1, 1))
    return (q, k, v), AttentionInputs(angle, angle, mask, own, keys)


@pytest.fixture(scope="module")
def packed_rows(rows):
    """Returns two packed rows and how their tokens see one another.

    Row 0 has a prompt and four sequences, of which the second has two more segments. Row 1 has two
    sequences and no prompt.
    """
    arrays, view = rows
    own = np.repeat(np.int32([1, 42, -43, -44, 83, 124, 0]), [7, 6, 5, 5, 8, 4, 5])
    own = np.stack([own, np.repeat(np.int32([1, 42, 0]), [20, 15, 5])])
    starts = np.maximum.accumulate(np.where(np.diff(own, prepend=0) != 0, np.arange(T), 0), axis=1)
    places = np.arange(T) - starts + np.where(own > 0, 10, 0)
    before = np.where(np.arange(S - T) < np.array([[10], [0]]), SHARED_PROMPT, 0)
    keys = jnp.asarray(np.concatenate([before, own], axis=1), jnp.int32)
    key_places = np.concatenate([np.tile(np.arange(S - T), (B, 1)), places], axis=1)
    mask = visible(*map(jnp.asarray, (places, own, key_places)), keys)
    return arrays, view._replace(
        mask_BTS=mask, segment_ids_BT=jnp.asarray(own), segment_ids_BS=keys
    )


@pytest.fixture(scope="module")
def long_packed_rows():
    """Returns six sequences of 50 columns behind 140 of their prompt: several blocks of each."""
    length, T, S = 50, 300, 440
    random = np.random.default_rng(2)
    shapes = (1, T, H, h), (1, K, h, S), (1, K, S, h)
    arrays = tuple(jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
    own = jnp.asarray(np.arange(T)[None] // length * 1000 + 1, jnp.int32)
    places = jnp.asarray(np.arange(T)[None] % length + 140)
    keys = jnp.concatenate([jnp.full((1, 140), SHARED_PROMPT), own], axis=1)
    key_places = jnp.concatenate([jnp.arange(140)[None], places], axis=1)
    angle, mask = jnp.zeros((1, 1, 1, 1)), visible(places, own, key_places, keys)
    return arrays, AttentionInputs(angle, angle, mask, own, keys)


@pytest.mark.parametrize(
    ("kind", "softcap"),
    [
        pytest.param("rows", None, marks=pytest.mark.slow),
        pytest.param("rows", 5.0, marks=pytest.mark.slow),
        ("packed_rows", None),
        pytest.param("long_packed_rows", None, marks=pytest.mark.slow),
    ],
)
def test_splash_is_attention_and_so_is_its_gradient(request, kind, softcap):
    arrays, view = request.getfixturevalue(kind)
    shape = (*view.segment_ids_BT.shape, H * h)
    weights = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    weights = jnp.where(view.segment_ids_BT[..., None] != 0, weights, 0)
    options = {"query_scalar": 20.0, "softcap": softcap}

    def plain(q, k, v):
        return jnp.sum(weights * attend(q, k, v, view, **options, in_order=True))

    def kernel(q, k, v):
        ids = view.segment_ids_BT, view.segment_ids_BS
        return jnp.sum(weights * splash(q, k, v, *ids, **options, interpret=True))

    of = partial(jax.value_and_grad, argnums=(0, 1, 2))
    expected, ours = jax.jit(of(plain))(*arrays), jax.jit(of(kernel))(*arrays)
    np.testing.assert_allclose(ours[0], expected[0], rtol=1e-4)
    for a, b in zip(ours[1], expected[1], strict=True):
        assert np.linalg.norm(a - b) <= 2e-6 * np.linalg.norm(b)


def test_cudnn_is_asked_for_the_same_attention(rows, monkeypatch):
    """JAX's own implementation replaces cuDNN; it takes the same arguments."""
    asked, product = [], jax.nn.dot_product_attention

    def stands_for(*arrays, implementation, **options):
        asked.append(implementation)
        assert [x.shape[1] % 2 for x in arrays] == [0, 0, 0]  # else it has no gradient
        return product(*arrays, **options)

    monkeypatch.setattr(jax.nn, "dot_product_attention", stands_for)
    (q, k, v), view = rows
    arrays, view = (q[:, 1:], k, v), view._replace(mask_BTS=view.mask_BTS[:, 1:])
    options = {"query_scalar": 20.0, "softcap": None, "in_order": True}
    expected = attend(*arrays, view, **options)
    real = np.asarray(view.segment_ids_BT)[:, 1:] > 0
    for ours in (
        cudnn(*arrays, view.mask_BTS, query_scalar=20.0),
        attend(*arrays, view, **options, kernel="cudnn"),
    ):
        np.testing.assert_allclose(ours[real], expected[real], atol=1e-5)
    assert asked == ["cudnn", "cudnn"]


def test_splash_lowers_for_a_tpu_in_every_layer(policy, params, make_trajectories):
    """Tests the forward and the backward of `Decoder.hidden`."""
    decoder, made = dataclasses.replace(policy.decoder, attention="splash"), make_trajectories()
    tokens = made.tokens_BT, made.positions_BT, made.segment_ids_BT
    gradient = jax.jit(jax.grad(lambda params: jnp.sum(decoder.hidden(params, *tokens))))
    lowered = gradient.trace(params).lower(lowering_platforms=("tpu",)).as_text()
    assert lowered.count("tpu_custom_call") >= 3  # one forward, two backward
    of_xla = jax.jit(jax.grad(lambda params: jnp.sum(policy.decoder.hidden(params, *tokens))))
    lowered = of_xla.trace(params).lower(lowering_platforms=("tpu",)).as_text()
    assert "tpu_custom_call" not in lowered


ALONG_TP = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from jax.sharding import PartitionSpec as P
from rl4p.distributed.mesh import Mesh
from rl4p.model.kernels import splash

B, T, H, K, h = 2, 40, 4, 2, 16
random = np.random.default_rng(0)
shapes = (B, T, H, h), (B, K, h, T), (B, K, T, h)
q, k, v = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
ids = jnp.ones((B, T), jnp.int32)
run = partial(splash, query_scalar=16.0, softcap=None, interpret=True)

def total(q, k, v, ids):
    return jnp.sum(jnp.sin(run(q, k, v, ids, ids)))

def gradient(q, k, v, ids):
    return jax.grad(total, argnums=(0, 1, 2))(q, k, v, ids)

mesh = Mesh(dp=2, tp=2)
rows = P("dp")
divided = jax.shard_map(
    gradient, mesh=mesh.devices, in_specs=rows, out_specs=rows, axis_names={"dp"}, check_vma=False
)
for a, b in zip(jax.jit(divided)(q, k, v, ids), jax.jit(gradient)(q, k, v, ids)):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
"""


@pytest.mark.slow
def test_along_tp_each_device_runs_its_own_heads(on_devices):
    done = subprocess.run(
        [sys.executable, "-c", ALONG_TP], env=on_devices(4), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("kernel", "platform", "dtype", "config", "message"),
    [
        ("cudnn", "cpu", "bfloat16", {}, "needs an NVIDIA GPU, but these devices are cpu"),
        ("splash", "gpu", "float32", {}, "needs a TPU, but these devices are gpu"),
        ("cudnn", "gpu", "float32", {}, "needs model.dtype=bfloat16, not float32"),
        ("cudnn", "gpu", "bfloat16", {"head_width": 12}, "head width divisible by 8, not 12"),
        ("cudnn", "gpu", "bfloat16", {"attention_softcap": 9.0}, "score cap"),
        ("cudnn", "gpu", "bfloat16", {"attention_sinks": True}, "attention sinks"),
        ("splash", "tpu", "float32", {"attention_sinks": True}, "attention sinks"),
        ("splash", "tpu", "float32", {"sliding": (True, False), "window": 4}, "sliding window"),
    ],
)
def test_what_a_kernel_cannot_do_is_one_clear_sentence(
    policy, kernel, platform, dtype, config, message
):
    config = dataclasses.replace(policy.decoder.config, **config)
    end = "choose model.attention=xla."
    with pytest.raises(InputError, match=f"model.attention={kernel} .*{message}.*: {end}$"):
        check_kernel(kernel, config, dtype, platform)
    check_kernel("xla", config, dtype, platform)


def test_models_ask_before_they_build():
    with pytest.raises(InputError, match=re.escape("model.attention=splash needs a TPU")):
        Scratch(attention="splash").build(Mesh(dp=1), jax.random.key(0))
