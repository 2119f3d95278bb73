"""Tests attention masks by hand, and attention against a plain loop in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.attention import AttentionInputs, attend, softcapped, views, visible
from rl4p.model.decoder_config import LayerKind
from rl4p.model.kernels import SHARED_PROMPT
from tests.golden.cases import decoder_config

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
    whole, sliding = seen.for_layer(WHOLE), seen.for_layer(SLIDING)
    assert int(whole.mask_BTS[0, -1].sum()) == 12
    assert int(sliding.mask_BTS[0, -1].sum()) == config.window == 9
    half = config.head_width // 2
    for view, base, factor in ((whole, 500.0, 8.0), (sliding, 50.0, 1.0)):
        angles = 11 * base ** (-np.arange(half) / half) / factor
        np.testing.assert_allclose(view.cos[0, -1, 0], np.cos(angles), atol=1e-5)
        np.testing.assert_allclose(view.sin[0, -1, 0], np.sin(angles), atol=1e-5)


def test_layers_share_what_is_alike():
    seen = views(decoder_config("gemma2"), *ROW, *ROW)
    whole, sliding = seen.for_layer(WHOLE), seen.for_layer(SLIDING)
    assert whole.cos is sliding.cos
    assert whole.mask_BTS is not sliding.mask_BTS
    assert views(decoder_config("qwen3"), *ROW, *ROW).kinds == (WHOLE,)
    assert views(decoder_config("mistral"), *ROW, *ROW).kinds == (SLIDING,)


def test_a_layer_without_rope_does_not_rotate():
    seen = views(decoder_config("smollm3"), *ROW, *ROW)
    assert seen.kinds == (WHOLE, UNROTATED)
    whole, unrotated = map(seen.for_layer, seen.kinds)
    assert whole.mask_BTS is unrotated.mask_BTS
    assert np.abs(whole.sin).max() > 0.5
    np.testing.assert_array_equal(unrotated.cos, 1)
    np.testing.assert_array_equal(unrotated.sin, 0)


@pytest.mark.parametrize("case", ["gemma3", "smollm3", "smollm3_window", "qwen3"])
def test_the_view_of_a_layer_is_chosen_on_the_device(case):
    seen = views(decoder_config(case), *ROW, *ROW)
    for index, kind in enumerate(seen.kinds):
        for ours, expected in zip(
            seen.traced_layer(jnp.asarray(index)), seen.for_layer(kind), strict=True
        ):
            np.testing.assert_array_equal(ours, expected)


def test_a_view_that_no_layer_has_is_not_there():
    with pytest.raises(ValueError, match="not in tuple"):
        views(decoder_config("qwen3"), *ROW, *ROW).for_layer(SLIDING)
