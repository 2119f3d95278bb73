"""Tests attention masks by hand, and attention against a plain loop in float64."""

import dataclasses
import re
import subprocess
import sys
import types
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.distributed.mesh import Mesh
from rl4p.model.attention import (
    SHARED_PROMPT,
    AttentionInputs,
    attend,
    cudnn,
    kernel_for,
    softcapped,
    splash,
    traced_view,
    views,
    visible,
)
from rl4p.model.decoder_config import LayerKind
from rl4p.model.scratch import Scratch
from tests.golden.cases import decoder_config

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


@pytest.mark.slow
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


@pytest.mark.slow
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
from rl4p.model.attention import cudnn, splash

B, T, H, K, h = 2, 40, 4, 2, 16
random = np.random.default_rng(0)
shapes = (B, T, H, h), (B, K, h, T), (B, K, T, h)
q, k, v = (jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
ids = jnp.ones((B, T), jnp.int32)
heads, product = set(), jax.nn.dot_product_attention

def stands_for_cudnn(q, k, v, *, implementation, **options):
    heads.add(q.shape[2])
    return product(q, k, v, **options)

def run(q, k, v, ids):
    if KERNEL == "splash":
        return splash(q, k, v, ids, ids, query_scalar=16.0, softcap=None, interpret=True)
    mask = jnp.tril(ids[:, :, None] == ids[:, None])
    return cudnn(q, k, v, mask, query_scalar=16.0)

jax.nn.dot_product_attention = stands_for_cudnn

def total(q, k, v, ids):
    return jnp.sum(jnp.sin(run(q, k, v, ids)))

def gradient(q, k, v, ids):
    return jax.grad(total, argnums=(0, 1, 2))(q, k, v, ids)

mesh = Mesh(dp=2, tp=2)
rows = P("dp")
divided = jax.shard_map(
    gradient, mesh=mesh.devices, in_specs=rows, out_specs=rows, axis_names={"dp"}, check_vma=False
)
for a, b in zip(jax.jit(divided)(q, k, v, ids), jax.jit(gradient)(q, k, v, ids)):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
assert heads == ({H, H // 2} if KERNEL == "cudnn" else set())
"""


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["splash", "cudnn"])
def test_along_tp_each_device_runs_its_own_heads(on_devices, kernel):
    program = f"KERNEL = {kernel!r}\n{ALONG_TP}"
    done = subprocess.run(
        [sys.executable, "-c", program], env=on_devices(4), capture_output=True, text=True
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
    end = "choose model.attention=auto."
    with pytest.raises(InputError, match=f"model.attention={kernel} .*{message}.*: {end}$"):
        kernel_for(kernel, config, dtype, platform)
    assert kernel_for("xla", config, dtype, platform) == "xla"
    assert kernel_for("auto", config, dtype, platform) == "xla"


@pytest.mark.parametrize(
    ("platform", "dtype", "changes", "kernel"),
    [
        ("cpu", "float32", {}, "xla"),
        ("cpu", "bfloat16", {}, "xla"),
        ("tpu", "float32", {}, "splash"),
        ("tpu", "bfloat16", {}, "splash"),
        ("tpu", "bfloat16", {"attention_softcap": 9.0}, "splash"),
        ("gpu", "bfloat16", {}, "cudnn"),
        ("gpu", "bfloat16", {"sliding": (True, False), "window": 4}, "cudnn"),
        ("gpu", "bfloat16", {"head_width": 128}, "cudnn"),
        ("gpu", "bfloat16", {"head_width": 256}, "xla"),  # not on every GPU
        ("gpu", "float32", {}, "xla"),
    ],
)
def test_auto_is_the_fastest_kernel_that_can_be_used(policy, platform, dtype, changes, kernel):
    config = dataclasses.replace(policy.decoder.config, **changes)
    assert kernel_for("auto", config, dtype, platform) == kernel
    assert kernel_for(kernel, config, dtype, platform) == kernel


@pytest.mark.parametrize(
    ("capability", "kernel"),
    [("7.5", "xla"), ("8.0", "cudnn"), ("9.0", "cudnn"), ("12.0", "cudnn"), ("gfx90a", "xla")],
)
def test_auto_takes_cudnn_on_the_gpus_that_have_it(policy, monkeypatch, capability, kernel):
    gpu = types.SimpleNamespace(compute_capability=capability)
    monkeypatch.setattr(jax, "devices", lambda: [gpu])
    assert kernel_for("auto", policy.decoder.config, "bfloat16", "gpu") == kernel


def test_models_ask_before_they_build():
    with pytest.raises(InputError, match=re.escape("model.attention=splash needs a TPU")):
        Scratch(attention="splash").build(Mesh(dp=1), jax.random.key(0))


H, K, h = 4, 2, 8


def test_a_token_sees_itself_and_what_was_before_it_in_its_segment():
    """Two sequences of two tokens between padding; both, and padding, repeat positions."""
    segments = np.int32([[0, 1, 1, 2, 2, 0]])
    positions = np.int32([[0, 0, 1, 0, 1, 1]])
    nothing = [0, 0, 0, 0, 0, 0]
    expected = [
        nothing,
        [0, 1, 0, 0, 0, 0],
        [0, 1, 1, 0, 0, 0],
        [0, 0, 0, 1, 0, 0],
        [0, 0, 0, 1, 1, 0],
        nothing,
    ]
    np.testing.assert_array_equal(visible(positions, segments, positions, segments)[0], expected)


def test_tokens_of_positive_segments_see_a_shared_prompt():
    """A prompt of two tokens and one column of padding, and two responses and a later segment."""
    segments, positions = np.int32([[1, 1, 2, -9]]), np.int32([[2, 3, 2, 4]])
    keys = np.concatenate([np.int32([[SHARED_PROMPT, SHARED_PROMPT, 0]]), segments], axis=1)
    places = np.concatenate([np.int32([[0, 1, 2]]), positions], axis=1)
    seen = visible(positions, segments, places, keys)[0]
    np.testing.assert_array_equal(
        seen,
        [
            [1, 1, 0, 1, 0, 0, 0],
            [1, 1, 0, 1, 1, 0, 0],
            [1, 1, 0, 0, 0, 1, 0],
            [0, 0, 0, 0, 0, 0, 1],
        ],
    )
    slid = visible(positions, segments, places, keys, window=3)[0]
    np.testing.assert_array_equal(slid[1, :3], [0, 1, 0])


def test_queries_may_be_fewer_than_keys():
    queries, keys = np.int32([[2, 3]]), np.int32([[0, 1, 2, 3]])
    seen = visible(queries, np.ones_like(queries), keys, np.ones_like(keys))
    np.testing.assert_array_equal(seen[0], [[1, 1, 1, 0], [1, 1, 1, 1]])


@pytest.mark.parametrize(("window", "last"), [(1, [0, 0, 0, 1]), (2, [0, 0, 1, 1])])
def test_a_window_counts_the_present_token(window, last):
    positions = np.arange(4, dtype=np.int32)[None]
    ones = np.ones_like(positions)
    np.testing.assert_array_equal(visible(positions, ones, positions, ones, window)[0, -1], last)


def test_a_chunk_begins_at_a_multiple_of_its_length():
    """The first two positions of a prompt, and four later ones of a row."""
    keys, segments = np.arange(6, dtype=np.int32)[None], np.ones((1, 6), np.int32)
    seen = visible(keys[:, 2:], segments[:, 2:], keys, segments, window=3, chunked=True)[0]
    expected = [[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 1, 1]]
    np.testing.assert_array_equal(seen, expected)


def plain(q_BTHh, k_BKhS, v_BKSh, mask_BTS, query_scalar, softcap):
    """Computes each row and head. Query heads 0 and 1 read KV head 0, the next two KV head 1."""
    q, k, v = (np.asarray(x, np.float64) for x in (q_BTHh, k_BKhS, v_BKSh))
    out = np.zeros(q.shape)
    for b in range(q.shape[0]):
        for head in range(H):
            scores = q[b, :, head] @ k[b, head // (H // K)] / np.sqrt(query_scalar)
            if softcap is not None:
                scores = softcap * np.tanh(scores / softcap)
            weights = np.where(mask_BTS[b], np.exp(scores), 0)
            weights /= weights.sum(axis=1, keepdims=True)
            out[b, :, head] = weights @ v[b, head // (H // K)]
    return out.reshape(*q.shape[:2], -1)


def random_rows(T, before):
    """Returns the queries of the last T of T + before keys; the first keys of row 1 are padding."""
    random, S = np.random.default_rng(0), T + before
    shapes = (2, T, H, h), (2, K, h, S), (2, K, S, h)
    arrays = [jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes]
    keys = jnp.asarray(np.arange(S) >= np.array([[0], [before // 2]]), jnp.int32)
    places = jnp.broadcast_to(jnp.arange(S), (2, S))
    mask = visible(places[:, before:], keys[:, before:], places, keys)
    angle = jnp.zeros((1, 1, 1, 1))
    return arrays, AttentionInputs(angle, angle, mask, keys[:, before:], keys)


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("T", "before", "softcap", "in_order"),
    [
        (5, 3, None, False),
        (1, 7, 2.0, False),
        (97, 0, None, True),  # two blocks of queries, the second shorter
        (130, 20, 2.0, True),
        (300, 5, None, True),  # four blocks
    ],
)
def test_attention_is_its_formula(T, before, softcap, in_order):
    arrays, view = random_rows(T, before)
    options = {"query_scalar": 5.0, "softcap": softcap, "in_order": in_order}
    ours = jax.jit(lambda *x: attend(*x, view, **options))(*arrays)
    assert ours.shape == (2, T, H * h)
    expected = plain(*arrays, np.asarray(view.mask_BTS), 5.0, softcap)
    np.testing.assert_allclose(ours, expected, atol=2e-6)


def test_blocks_of_queries_leave_out_the_keys_behind_them():
    arrays, view = random_rows(256, 0)
    options = {"query_scalar": 5.0, "softcap": None}

    def products(in_order):
        program = jax.make_jaxpr(lambda *x: attend(*x, view, **options, in_order=in_order))
        sizes = [
            int(np.prod(equation.outvars[0].aval.shape))
            for equation in program(*arrays).jaxpr.eqns
            if equation.primitive.name == "dot_general"
        ]
        return sum(sizes[::2])  # every other product is the scores

    assert products(in_order=True) == products(in_order=False) * (1 + 2 + 3 + 4) / 16


def test_a_row_that_sees_nothing_is_finite():
    arrays, view = random_rows(3, 0)
    view = view._replace(mask_BTS=jnp.zeros_like(view.mask_BTS))
    attended = attend(*arrays, view, query_scalar=5.0, softcap=None, in_order=False)
    assert jnp.isfinite(attended).all()


def test_the_softmax_of_half_precision_is_in_float32():
    arrays, view = random_rows(4, 0)
    half = [x.astype(jnp.bfloat16) for x in arrays]
    program = jax.make_jaxpr(
        lambda *x: attend(*x, view, query_scalar=5.0, softcap=2.0, in_order=False)
    )(*half)
    kinds = {
        (equation.primitive.name, equation.invars[0].aval.dtype.name)
        for equation in program.jaxpr.eqns
        if equation.primitive.name in ("exp", "tanh", "reduce_sum", "dot_general")
    }
    assert kinds == {
        ("exp", "float32"),
        ("tanh", "float32"),
        ("reduce_sum", "float32"),
        ("dot_general", "bfloat16"),
    }
    assert program.out_avals[0].dtype == jnp.bfloat16


@pytest.mark.parametrize("kernel", ["cudnn", "splash"])
def test_decoding_is_left_to_xla(kernel):
    arrays, view = random_rows(1, 7)
    options = {"query_scalar": 5.0, "softcap": None, "in_order": False}
    np.testing.assert_array_equal(
        attend(*arrays, view, **options, kernel=kernel), attend(*arrays, view, **options)
    )


@pytest.mark.parametrize(("T", "before", "in_order"), [(1, 7, False), (97, 0, True)])
def test_a_sink_takes_a_share_of_each_heads_weights(T, before, in_order):
    """With sums Z of exp(scores), the share of head h is exp(sink_h) / (Z + exp(sink_h))."""
    (q, k, v), view = random_rows(T, before)
    options = {"query_scalar": 8.0, "softcap": None, "in_order": in_order}
    sinks = np.float32([-2, 0, 1, 3])
    ours = attend(q, k, v, view, sinks_H=jnp.asarray(sinks), **options).reshape(2, T, H, h)
    without = attend(q, k, v, view, **options).reshape(2, T, H, h)
    scores = np.einsum("bthx,bhxs->bths", q, np.repeat(k, H // K, axis=1)) / np.sqrt(8)
    sums = np.where(view.mask_BTS[:, :, None], np.exp(scores), 0).sum(axis=-1)
    rest = sums / (sums + np.exp(sinks))
    np.testing.assert_allclose(ours, without * rest[..., None], atol=1e-5)


def test_soft_caps_by_hand():
    x = np.float32([-100, 0, 1, 100])
    np.testing.assert_allclose(softcapped(x, 2.0), 2 * np.tanh(x / 2), rtol=1e-6)
    assert softcapped(x, None) is x


WHOLE, SLIDING, UNROTATED = LayerKind(False, False), LayerKind(True, False), LayerKind(False, True)
ROW = (np.arange(12, dtype=np.int32)[None], np.ones((1, 12), np.int32))


def test_layers_that_slide_have_a_window_and_a_rope_of_their_own():
    """Full layers of Gemma 3 are scaled by 8 with base 500; sliding layers have base 50."""
    config = decoder_config("gemma3")
    seen = views(config, *ROW, *ROW)
    whole, sliding = seen[WHOLE], seen[SLIDING]
    assert int(whole.mask_BTS[0, -1].sum()) == 12
    assert int(sliding.mask_BTS[0, -1].sum()) == config.window == 9
    half = config.head_width // 2
    for view, base, factor in ((whole, 500.0, 8.0), (sliding, 50.0, 1.0)):
        angles = 11 * base ** (-np.arange(half) / half) / factor
        np.testing.assert_allclose(view.cos[0, -1, 0], np.cos(angles), atol=1e-5)
        np.testing.assert_allclose(view.sin[0, -1, 0], np.sin(angles), atol=1e-5)


def test_layers_share_what_is_alike():
    seen = views(decoder_config("gemma2"), *ROW, *ROW)
    whole, sliding = seen[WHOLE], seen[SLIDING]
    assert whole.cos is sliding.cos
    assert whole.mask_BTS is not sliding.mask_BTS
    assert [*views(decoder_config("qwen3"), *ROW, *ROW)] == [WHOLE]
    assert [*views(decoder_config("mistral"), *ROW, *ROW)] == [SLIDING]


def test_a_layer_without_rope_does_not_rotate():
    seen = views(decoder_config("smollm3"), *ROW, *ROW)
    assert [*seen] == [WHOLE, UNROTATED]
    whole, unrotated = seen.values()
    assert whole.mask_BTS is unrotated.mask_BTS
    assert np.abs(whole.sin).max() > 0.5
    np.testing.assert_array_equal(unrotated.cos, 1)
    np.testing.assert_array_equal(unrotated.sin, 0)


def test_what_llama_4_rotates_is_normed_and_other_queries_grow():
    """At position p by 1 + 0.3 ln(1 + floor((p + 1) / 5))."""
    seen = views(decoder_config("llama4"), *ROW, *ROW)
    whole, chunk = (next(seen[kind] for kind in seen if kind.slides is x) for x in (False, True))
    assert np.abs(chunk.sin).max() > 0.5
    assert (bool(whole.normed), bool(chunk.normed)) == (False, True)
    assert int(chunk.mask_BTS[0, -1].sum()) == 3  # of positions 9, 10 and 11
    assert int(whole.mask_BTS[0, -1].sum()) == 12
    expected = 1 + 0.3 * np.log(np.repeat([1, 2, 3], [4, 5, 3]))
    np.testing.assert_allclose(whole.growth[0, :, 0, 0], expected, rtol=1e-6)
    np.testing.assert_array_equal(chunk.growth, 1)
    assert all(view.growth is view.normed is None for view in views_of("llama4_untuned"))


def views_of(case):
    return views(decoder_config(case), *ROW, *ROW).values()


@pytest.mark.parametrize("case", ["gemma3", "smollm3", "smollm3_window", "qwen3", "llama4"])
def test_the_view_of_a_layer_is_chosen_on_the_device(case):
    seen = views(decoder_config(case), *ROW, *ROW)
    for index, view in enumerate(seen.values()):
        for ours, expected in zip(traced_view(seen, jnp.asarray(index)), view, strict=True):
            np.testing.assert_array_equal(ours, expected)
