import dataclasses
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.distributed.partition import for_decoding
from rl4p.model.decoder import Decoder, Prefix
from tests.support.equations import equations

LENGTHS = (7, 3, 10)
TOKENS = [np.random.default_rng(i).integers(0, 256, n) for i, n in enumerate(LENGTHS)]


@pytest.fixture
def decoder(policy):
    return policy.decoder


def layout(*sequences, width=16):
    """Returns one row with sequences at their columns, each with its own segment id, from 1."""
    tokens, positions, segments = (np.zeros((1, width), np.int32) for _ in range(3))
    tokens[:] = 99  # padding must not be recognised by a zero
    for segment, (start, sequence) in enumerate(sequences, 1):
        here = slice(start, start + len(sequence))
        tokens[0, here], positions[0, here] = sequence, np.arange(len(sequence))
        segments[0, here] = segment
    return tokens, positions, segments


@partial(jax.jit, static_argnums=0)
def run(decoder, params, *row):
    return decoder.logits(params, decoder.hidden(params, *row))[0]


def logits_of(decoder, params, *sequences):
    """Returns the logits of each sequence in a row."""
    logits_TV = run(decoder, params, *layout(*sequences))
    return [logits_TV[start : start + len(sequence)] for start, sequence in sequences]


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_a_plain_implementation(decoder, params, numpy_logits, tied):
    if not tied:
        decoder = Decoder(config=dataclasses.replace(decoder.config, tied_embedding=False))
        params = params | {"head": jnp.flip(params["embedding"], axis=0)}
    for tokens in TOKENS:
        (ours,) = logits_of(decoder, params, (0, tokens))
        expected = numpy_logits(decoder.config, params, tokens)
        np.testing.assert_allclose(ours, expected, atol=1e-5 * np.abs(expected).max())


def test_padding_and_packing_change_no_logits(decoder, params):
    plain = [logits_of(decoder, params, (0, tokens))[0] for tokens in TOKENS]
    first, second, third = TOKENS
    for row, expected in (
        ([(9, first)], plain[:1]),
        ([(6, third)], plain[2:]),
        ([(3, second), (6, third)], plain[1:]),
        ([(0, third), (13, second)], plain[:0:-1]),
        ([(1, first), (9, first)], [plain[0], plain[0]]),
    ):
        for ours, wanted in zip(logits_of(decoder, params, *row), expected, strict=True):
            np.testing.assert_allclose(ours, wanted, atol=1e-5)


def test_a_future_token_changes_nothing_before_it(decoder, params):
    tokens = TOKENS[2]
    changed = np.where(np.arange(10) < 6, tokens, (tokens + 1) % 256)
    (before,), (after,) = (logits_of(decoder, params, (0, x)) for x in (tokens, changed))
    np.testing.assert_array_equal(before[:6], after[:6])
    assert np.all(np.max(np.abs(before[6:] - after[6:]), axis=1) > 1e-3)


@pytest.mark.slow
def test_prefill_and_decoding_with_a_cache_are_the_full_forward(decoder, params):
    """Two rows, padded left, are prefilled; then three more tokens are decoded one by one."""
    rows = [layout((16 - n, tokens)) for n, tokens in zip(LENGTHS[::2], TOKENS[::2], strict=True)]
    tokens, positions, segments = (jnp.concatenate(x) for x in zip(*rows, strict=True))
    hidden = jax.jit(decoder.hidden)(params, tokens, positions, segments)
    extend = jax.jit(decoder.extend)
    single, cache = for_decoding(params, decoder.dtype), decoder.empty_cache(2, 18)
    parts = []
    for start, end in ((0, 13), (13, 14), (14, 15), (15, 16)):
        chunk = (x[:, start:end] for x in (tokens, positions, segments))
        part, cache = extend(single, *chunk, cache, start)
        parts.append(part)
    real = np.asarray(segments) > 0
    np.testing.assert_allclose(np.concatenate(parts, 1)[real], hidden[real], atol=1e-5)
    np.testing.assert_array_equal(cache.segment_ids_BS, np.pad(segments, ((0, 0), (0, 2))))


@pytest.mark.quick(1)
@pytest.mark.parametrize("sliding", [(), (True, False)])
def test_what_follows_a_beginning_is_the_end_of_the_whole_row(decoder, params, sliding):
    """Four tokens run first and give their keys and values; the other six follow.

    A window of three tokens reaches into these four, but not to the first.
    """
    config = dataclasses.replace(decoder.config, sliding=sliding, window=3 if sliding else None)
    decoder = dataclasses.replace(decoder, config=config)
    tokens, positions, segments = layout((0, TOKENS[2]), width=10)
    whole = jax.jit(decoder.hidden)(params, tokens, positions, segments)
    first, rest = (
        [x[:, here] for x in (tokens, positions, segments)] for here in (slice(4), slice(4, None))
    )
    before = Prefix(jax.jit(decoder.caches)(params, *first), first[2])
    behind = jax.jit(decoder.hidden)(params, *rest, before)
    np.testing.assert_allclose(behind, whole[:, 4:], atol=1e-5)


@pytest.mark.slow
def test_each_row_may_be_extended_at_a_slot_of_its_own(decoder, params):
    """One more token for two rows, of which one has seven tokens and the other three."""
    rows = [layout((0, tokens)) for tokens in TOKENS[:2]]
    tokens, positions, segments = (jnp.concatenate(x) for x in zip(*rows, strict=True))
    hidden = jax.jit(decoder.hidden)(params, tokens, positions, segments)
    single, cache = for_decoding(params, decoder.dtype), decoder.empty_cache(2, 8)
    last = np.array(LENGTHS[:2]) - 1
    shorter = np.where(np.arange(8) < last[:, None], segments[:, :8], 0)
    _, cache = jax.jit(decoder.extend)(single, tokens[:, :8], positions[:, :8], shorter, cache, 0)
    here = (np.arange(2), last)
    last_hidden, cache = jax.jit(decoder.extend)(
        single, *(x[here][:, None] for x in (tokens, positions, segments)), cache, last
    )
    np.testing.assert_allclose(last_hidden[:, 0], hidden[here], atol=1e-5)
    np.testing.assert_array_equal(cache.segment_ids_BS, segments[:, :8])


def test_rows_of_padding_alone_are_finite(decoder, params):
    assert jnp.isfinite(run(decoder, params, *layout())).all()


def test_bfloat16_activations_give_float32_logits_near_those_of_float32(decoder, params):
    (exact,) = logits_of(decoder, params, (0, TOKENS[2]))
    half = dataclasses.replace(decoder, dtype="bfloat16")
    (rough,) = logits_of(half, params, (0, TOKENS[2]))
    assert rough.dtype == jnp.float32
    assert (np.asarray(rough.astype(jnp.bfloat16), np.float32) != rough).mean() > 0.9
    assert jax.eval_shape(half.hidden, params, *layout()).dtype == jnp.bfloat16
    assert 0 < np.std(rough - exact) < 0.05 * np.std(exact)


@pytest.mark.parametrize(
    ("platform", "dtype", "kind"),
    [
        ("cpu", "bfloat16", "float32"),
        ("gpu", "bfloat16", "bfloat16"),
        ("tpu", "bfloat16", "bfloat16"),
        ("cpu", "float32", "float32"),
    ],
)
def test_only_a_cpu_adds_products_of_bfloat16_up_in_float32(decoder, params, platform, dtype, kind):
    decoder = dataclasses.replace(decoder, platform=platform, dtype=dtype)
    loss = jax.value_and_grad(lambda params: decoder.hidden(params, *layout()).astype(float).sum())
    kernels = {x.shape[1:] for x in jax.tree.leaves(params["layers"]) if x.ndim == 3}
    products = [
        x.outvars[0].aval.dtype.name
        for _, x in equations(jax.make_jaxpr(loss)(params).jaxpr)
        if x.primitive.name == "dot_general" and x.invars[1].aval.shape in kernels
    ]
    assert len(products) >= 14  # seven kernels, forward and backward
    assert set(products) == {kind}
    cache = decoder.empty_cache(2, 8)
    assert {x.dtype.name for x in jax.tree.leaves(cache.layers)} == {kind}


def test_a_cpu_does_not_convert_the_cache_to_write_a_token(decoder, params):
    """In the compiled program no array has the size of the cache and another dtype."""
    decoder = dataclasses.replace(decoder, dtype="bfloat16")
    cache = jax.tree.map(jnp.copy, decoder.empty_cache(3, 112))  # since some arrays are one
    params = for_decoding(params, "bfloat16")
    ones_BT = jnp.ones((3, 1), jnp.int32)
    step = jax.jit(decoder.extend, donate_argnums=4)
    arguments = params, ones_BT, ones_BT, ones_BT, cache, jnp.asarray([3, 5, 9])
    text = step.lower(*arguments).compile().as_text()
    assert re.search(r"f32\[3,\d+,112,\d+\]", text)
    assert not re.search(r"bf16\[3,\d+,(112,\d+|\d+,112)\]", text)
    hidden, cache = step(*arguments)
    assert hidden.dtype == jnp.bfloat16
    assert cache.layers[0][0].dtype == jnp.float32


@pytest.mark.slow
@pytest.mark.parametrize(
    "option",
    [
        {"remat": "layer"},
        pytest.param({"remat": "elementwise"}, marks=pytest.mark.slow),
        pytest.param({"unroll": True}, marks=pytest.mark.slow),
    ],
)
def test_neither_recomputing_nor_unrolling_changes_a_gradient(decoder, params, option):
    def gradient(decoder):
        def loss(params):
            return jnp.sum(jnp.square(decoder.hidden(params, *layout((3, TOKENS[2])))))

        return jax.jit(jax.grad(loss))(params)

    plain = dataclasses.replace(decoder, remat="none")
    one, other = (gradient(x) for x in (plain, dataclasses.replace(plain, **option)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), one, other)


@pytest.mark.slow
def test_what_is_recomputed_is_not_kept(decoder, params):
    """Counts the bytes that a forward keeps for its backward, and the products of both."""
    kept, products = [], []
    for remat in ("none", "elementwise", "layer"):
        run = dataclasses.replace(decoder, remat=remat).hidden
        row = layout((3, TOKENS[2]))
        left = jax.eval_shape(
            lambda x, run=run, row=row: jax.vjp(lambda p: run(p, *row), x)[1], params
        )
        kept.append(sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(left)))
        gradient = jax.grad(lambda p, run=run, row=row: jnp.sum(run(p, *row)))
        products.append(str(jax.make_jaxpr(gradient)(params)).count("dot_general["))
    assert kept[0] - kept[2] > 2 * (kept[1] - kept[2]) > 0  # all three keep the parameters
    assert products[0] + 1 == products[1] < products[2]  # the scores of attention


@pytest.mark.slow
def test_scores_of_attention_are_not_kept(decoder, params):
    """They have a key for each query: of 200 tokens, more numbers than all else in a layer."""
    tokens_BT = jnp.ones((1, 200), jnp.int32)
    row = tokens_BT, jnp.cumsum(tokens_BT, axis=1), tokens_BT

    def kept(remat):
        run = dataclasses.replace(decoder, remat=remat).hidden
        left = jax.eval_shape(lambda x: jax.vjp(lambda p: run(p, *row), x)[1], params)
        return [x.shape for x in jax.tree.leaves(left)]

    def scores(shapes):
        h = decoder.config.head_width
        return [x for x in shapes if len(x) > 4 and min(x[-2:]) > h]

    assert scores(kept("none"))
    assert not scores(kept("elementwise"))
    assert len(kept("elementwise")) > len(kept("layer"))


@pytest.mark.parametrize("unroll", [False, True])
def test_unrolled_layers_are_no_loop(decoder, params, unroll):
    decoder = dataclasses.replace(decoder, remat="none", unroll=unroll)
    program = jax.jit(decoder.hidden).lower(params, *layout((3, TOKENS[2]))).as_text()
    assert ("while" in program) == (not unroll)


@pytest.mark.parametrize("remat", ["elementwise", "layer"])
def test_unrolled_layers_recompute_nothing_and_say_so(decoder, remat):
    with pytest.raises(InputError, match=rf"model.remat={remat} .* set model.remat=none"):
        dataclasses.replace(decoder, remat=remat, unroll=True)


@pytest.mark.slow
def test_fresh_parameters(decoder):
    params = jax.jit(decoder.init)(jax.random.key(0))
    layers = params["layers"]
    assert {x.dtype for x in jax.tree.leaves(params)} == {jnp.dtype("float32")}
    assert {len(x) for x in jax.tree.leaves(layers)} == {2}
    for kernel, deviation in (
        (params["embedding"], 0.02),
        (layers["gate"]["kernel"], 0.02),
        (layers["output"]["kernel"], 0.01),  # 0.02 / sqrt(2 x 2 layers)
        (layers["down"]["kernel"], 0.01),
    ):
        assert np.std(kernel) == pytest.approx(deviation, rel=0.1)
    assert not np.array_equal(layers["gate"]["kernel"][0], layers["gate"]["kernel"][1])
    assert not layers["query"]["bias"].any()
    assert "head" not in params
    config = dataclasses.replace(decoder.config, tied_embedding=False)
    other = jax.jit(Decoder(config=config).init)(jax.random.key(0))
    assert np.std(other["head"]) == pytest.approx(0.02, rel=0.1)
    assert not np.array_equal(other["head"], other["embedding"])
