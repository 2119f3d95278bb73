from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model import attention
from rl4p.model.attention import SHARED_PROMPT, views
from rl4p.model.cache import Latents, Prefix, Writer
from rl4p.model.decoder import Decoder
from rl4p.model.decoder_config import DecoderConfig, LatentConfig
from rl4p.model.layer import RMSNorm
from rl4p.model.lora import LoRA
from rl4p.model.mixers.latent import LatentAttention, absorbing_is_cheaper, score_scale
from rl4p.model.products import INIT, Projection
from rl4p.model.rope import YarnScaling
from tests.golden.cases import decoder_config, make_tensors, param_shapes, to_params

LATENT = LatentConfig(
    rank=16, query_rank=12, unrotated_width=10, rotated_width=6, value_width=8, score_growth=0.9
)
CONFIG = DecoderConfig(
    vocabulary=8,
    width=32,
    layers=1,
    heads=4,
    num_kv_heads=4,
    head_width=16,
    feed_forward_width=8,
    max_positions=512,
    rotary_width=6,
    interleaved_rope=True,
    rope_theta=500.0,
    rope_scaling=YarnScaling(factor=8.0, original_max_positions=64, magnitude=0.9),
    output_bias=True,
    latent=LATENT,
)
B, T, S = 2, 20, 24


def mixer(kernel="xla"):
    dense = partial(
        Projection, use_bias=False, dtype=jnp.float32, kernel_init=INIT, adapter_scale=0.5
    )
    return LatentAttention(CONFIG, dense, RMSNorm, kernel, parent=None)


@partial(jax.jit, static_argnames="kernel")
def run(params, x_BTD, view, cache=None, write=None, kernel="xla"):
    return mixer(kernel).apply({"params": params}, x_BTD, view, cache, write)


def view_of(positions, segments, key_positions, key_segments):
    arrays = [jnp.asarray(x, jnp.int32) for x in (positions, segments, key_positions, key_segments)]
    (view,) = views(CONFIG, *arrays).values()
    return view


def rows(segments):
    """Returns the view of whole rows, in which each segment begins at position 0."""
    positions = np.zeros_like(segments)
    for row, of_row in zip(positions, segments, strict=True):
        for number in np.unique(of_row):
            row[of_row == number] = np.arange(np.sum(of_row == number))
    return view_of(positions, segments, positions, segments)


@pytest.fixture(scope="module")
def x_BTD():  # noqa: N802
    return jax.random.normal(jax.random.key(1), (B, T, CONFIG.width))


@pytest.fixture(scope="module", params=["kernels", "adapters"])
def params(request, x_BTD):
    init = jax.jit(mixer().init)
    params = init(jax.random.key(0), x_BTD, rows(np.ones((B, T), int)))["params"]
    noise = np.random.default_rng(2)
    params = jax.tree.map(lambda x: np.float32(x + noise.normal(0, 0.4, x.shape)), params)
    if request.param == "adapters":
        for own in params.values():
            if "kernel" in own:
                into, out = own["kernel"].shape
                own["lora_a"] = np.float32(noise.normal(0, 0.4, (into, 3)))
                own["lora_b"] = np.float32(noise.normal(0, 0.4, (3, out)))
        assert any("lora_a" in own for own in params.values())
    return params


@pytest.mark.quick(1)
def test_decoding_absorbs_the_matrices_that_training_multiplies(params, x_BTD):
    positions = np.broadcast_to(np.arange(S), (B, S))
    whole, kept = run(params, x_BTD, rows(np.ones((B, T), int)))
    cache, parts = Latents(jnp.zeros((B, S, 16)), jnp.zeros((B, S, 6))), []
    for start, stop in ((0, 9), (9, 10), (10, 11), (11, T)):
        own, written = positions[:, start:stop], np.int32(positions < stop)
        view = view_of(own, np.ones_like(own), positions, written)
        assert absorbing_is_cheaper(CONFIG, stop - start, S)
        part, cache = run(params, x_BTD[:, start:stop], view, cache, Writer(start, None))
        parts.append(part)
    np.testing.assert_allclose(jnp.concatenate(parts, axis=1), whole, atol=1e-5)
    for written, appended in zip(cache, kept, strict=True):
        np.testing.assert_allclose(written[:, :T], appended, atol=1e-6)
    assert np.std(whole) > 0.1


def test_a_long_prompt_expands_keys_and_values_in_the_cache(params, x_BTD, monkeypatch):
    monkeypatch.setattr(
        "rl4p.model.mixers.latent.absorbing_is_cheaper", lambda *sizes: sizes[1] < T
    )
    positions = np.broadcast_to(np.arange(S), (B, S))
    view = view_of(positions[:, :T], np.ones((B, T)), positions, positions < T)
    cache = Latents(jnp.zeros((B, S, 16)), jnp.zeros((B, S, 6)))
    written, _ = run(params, x_BTD, view, cache, Writer(0, None))
    whole, _ = run(params, x_BTD, rows(np.ones((B, T), int)))
    np.testing.assert_allclose(written, whole, atol=1e-5)


@pytest.mark.quick(1)
def test_tokens_of_a_segment_see_no_other(params, x_BTD):
    segments = np.array([[1] * 8 + [2] * 9 + [0] * 3, [0] * 5 + [3] * 15])
    packed, _ = run(params, x_BTD, rows(segments))
    for row, part in ((0, slice(0, 8)), (0, slice(8, 17)), (1, slice(5, 20))):
        alone = x_BTD[row : row + 1, part]
        wanted, _ = run(params, alone, rows(np.ones(alone.shape[:2], int)))
        np.testing.assert_allclose(packed[row : row + 1, part], wanted, atol=1e-5)


def test_responses_see_the_latents_of_their_shared_prompt(params, x_BTD):
    prompt, response = x_BTD[:, :7], x_BTD[:, 7:]
    whole, _ = run(params, x_BTD, rows(np.ones((B, T), int)))
    _, prefix = run(params, prompt, rows(np.ones((B, 7), int)))
    positions = np.broadcast_to(np.arange(T), (B, T))
    segments = np.where(positions < 7, SHARED_PROMPT, 1)
    view = view_of(positions[:, 7:], segments[:, 7:], positions, segments)
    behind, _ = run(params, response, view, prefix)
    np.testing.assert_allclose(behind, whole[:, 7:], atol=1e-5)


@pytest.mark.quick(1)
def test_every_parameter_has_a_gradient(params, x_BTD):
    def loss(params):
        return jnp.sum(jnp.square(run(params, x_BTD, rows(np.ones((B, T), int)))[0]))

    for path, gradient in jax.tree.leaves_with_path(jax.jit(jax.grad(loss))(params)):
        assert jnp.max(jnp.abs(gradient)) > 1e-3, path


def test_kernels_take_values_as_wide_as_keys(params, x_BTD, monkeypatch):
    monkeypatch.setattr(attention, "splash", partial(attention.splash, interpret=True))
    view = rows(np.ones((B, T), int))
    plain, _ = run(params, x_BTD, view)
    kernel, _ = run(params, x_BTD, view, kernel="splash")
    np.testing.assert_allclose(kernel, plain, atol=1e-4)


def test_scores_grow_with_yarn():
    # 1 / sqrt(16), times (1 + 0.1 x 0.9 ln 8)^2 = 1.18715^2
    assert score_scale(CONFIG) == pytest.approx(0.25 * 1.40932, rel=1e-4)


@pytest.mark.parametrize(("queries", "slots", "absorbs"), [(1, 64, True), (64, 64, False)])
def test_a_form_is_chosen_by_its_products(queries, slots, absorbs):
    # Of DeepSeek-V3 by hand: 64 queries of 64 slots are, in each head, 64 x 512 x 256 products of
    # matrices, and 64 x 64 x 1088 with the latents or 64 x 64 x 320 with keys and values.
    latent = LatentConfig(
        rank=512, query_rank=None, unrotated_width=128, rotated_width=64, value_width=128
    )
    large = DecoderConfig(
        vocabulary=8,
        width=8,
        layers=1,
        heads=2,
        num_kv_heads=2,
        head_width=192,
        feed_forward_width=8,
        max_positions=8,
        latent=latent,
    )
    assert absorbing_is_cheaper(large, queries, slots) is absorbs


@pytest.mark.slow
def test_responses_see_the_latents_of_a_prompt_in_all_layers():
    """Of a decoder whose first layer is dense and whose others have experts."""
    config = decoder_config("deepseek_v3")
    decoder, params = Decoder(config=config), to_params(config, make_tensors(config))
    tokens = np.random.default_rng(0).integers(0, 64, (2, 20)).astype(np.int32)
    places = np.broadcast_to(np.arange(20, dtype=np.int32), (2, 20))
    ones, prompt, response = np.ones_like(tokens), np.s_[:, :7], np.s_[:, 7:]
    hidden, of_prompts = jax.jit(decoder.hidden), jax.jit(decoder.caches)
    whole = hidden(params, tokens, places, ones)
    caches = of_prompts(params, tokens[prompt], places[prompt], ones[prompt])
    before = Prefix(caches, jnp.full((2, 7), SHARED_PROMPT))
    rest = hidden(params, tokens[response], places[response], ones[response], before)
    np.testing.assert_allclose(rest, whole[response], atol=5e-5)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("q_a_proj", "query_down"),
        ("q_b_proj", "query_up"),
        ("kv_a_proj_with_mqa", "key_value_down"),
        ("kv_b_proj", "key_value_up"),
        ("o_proj", "output"),
    ],
)
def test_adapters_have_the_names_of_peft(module, name):
    shapes = param_shapes(decoder_config("deepseek_v3"))
    lora = LoRA(rank=2, targets=(module,))
    adapters = jax.eval_shape(lambda: lora.init(jax.random.key(0), shapes))
    assert adapters["layers"].keys() == {"latent"}
    assert adapters["layers"]["latent"].keys() == {name}
