"""Every family against golden files that transformers made (tests/golden), and against itself."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.errors import InputError
from rl4p.model.decoder import Decoder
from rl4p.model.families import FAMILIES, family_of
from rl4p.model.rope import LinearScaling, Llama3Scaling
from rl4p.partition import as_sampled
from tests.golden import forward
from tests.golden.cases import CASES, decoder_config, make_tensors, noise, sequences, to_tensors
from tests.golden.cases import to_params as assembled

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ROWS, WIDTH = sequences(), 64


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """Decoder, parameters and what transformers made of them."""
    config = decoder_config(request.param)
    with np.load(GOLDEN / f"{request.param}.npz") as file:
        golden = dict(file)
    return Decoder(config=config), assembled(config, make_tensors(config)), golden


@pytest.fixture(scope="module")
def plain(case):
    """Logits of each sequence in a row of its own."""
    decoder, params, _ = case
    logits = np.asarray(forward.logits(decoder, params, *forward.rows(ROWS, WIDTH)))
    return [row[: len(tokens)] for row, tokens in zip(logits, ROWS, strict=True)]


def test_logits_are_those_of_transformers(case, plain):
    np.testing.assert_allclose(np.concatenate(plain), case[2]["logits"], atol=1e-4)


@pytest.mark.slow  # `make parity` holds them against the living transformers
def test_gradients_are_those_of_transformers(case):
    decoder, params, golden = case
    gradient = forward.gradient(decoder, params, np.int32(ROWS[-1])[None])
    ours = to_tensors(decoder.config, gradient)
    names = sorted(ours)
    norms = np.array([np.linalg.norm(ours[name]) for name in names])
    products = np.array([np.vdot(ours[name], noise(name, ours[name].shape)) for name in names])
    np.testing.assert_allclose(norms, golden["gradient_norms"], rtol=1e-4, atol=1e-7)
    scale = golden["gradient_norms"] + 1e-7
    np.testing.assert_allclose(products / scale, golden["gradient_products"] / scale, atol=1e-3)


def test_greedy_tokens_are_those_of_transformers(case):
    decoder, params, golden = case
    ours = forward.greedy(decoder, params, np.int32(ROWS[1]), len(golden["greedy"]))
    np.testing.assert_array_equal(ours, golden["greedy"])


def test_padding_and_packing_change_nothing(case, plain):
    """All in one row, the longest last and padding between them; then each in a row padded left."""
    decoder, params, _ = case
    tokens, positions, segments = (np.zeros((3, WIDTH), np.int32) for _ in range(3))
    tokens[:] = 9
    places = ((0, 1, 7, 0), (0, 3, 2, 1), (0, 19, 5, 2), (1, 50, 1, 1), (2, 24, 3, 2))
    for row, start, segment, which in places:
        here = slice(start, start + len(ROWS[which]))
        tokens[row, here], positions[row, here] = ROWS[which], np.arange(len(ROWS[which]))
        segments[row, here] = segment
    logits = forward.logits(decoder, params, tokens, positions, segments)
    for row, start, _, which in places:
        here = slice(start, start + len(ROWS[which]))
        np.testing.assert_allclose(logits[row, here], plain[which], atol=5e-5)


def test_decoding_with_a_cache_changes_nothing(case, plain):
    """Padded left, a prefill longer than the window, then tokens one at a time."""
    decoder, params, _ = case
    padding, T = 3, len(ROWS[-1])
    tokens = np.pad(np.int32(ROWS[-1]), (padding, 0), constant_values=9)[None]
    positions = np.maximum(np.arange(padding + T, dtype=np.int32) - padding, 0)[None]
    segments = np.int32(np.arange(padding + T) >= padding)[None]
    params, cache = as_sampled(params, decoder.dtype), decoder.empty_cache(1, forward.SLOTS)
    starts = [0, *range(padding + 20, padding + T)]
    parts = []
    for start, end in zip(starts, [*starts[1:], padding + T], strict=True):
        chunk = (x[:, start:end] for x in (tokens, positions, segments))
        part, cache = forward.extend(decoder, params, *chunk, cache, start)
        parts.append(part)
    logits = np.concatenate(parts, axis=1)[0, padding:]
    np.testing.assert_allclose(logits, plain[-1], atol=5e-5)


def test_a_configuration_comes_back_whole(case):
    config = case[0].config
    family = FAMILIES[config.family]
    written = family.write_config(config) | {"model_type": family.model_type}
    assert family_of(written, "here").read_config(written, "here") == config


def test_every_parameter_has_names_and_no_other(case):
    """`assembled` starts from parameters that are not numbers."""
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(case[1]))


@pytest.mark.parametrize("case", ["llama", "gemma2", "qwen3_moe"])
def test_fresh_parameters(case):
    decoder = Decoder(config=decoder_config(case))
    params = jax.jit(decoder.init)(jax.random.key(0))
    for name, tensor in to_tensors(decoder.config, params).items():
        if name.endswith("norm.weight"):
            assert (tensor == (0 if case == "gemma2" else 1)).all(), name
        else:  # residual outputs by 1 / sqrt(2 x 3 layers)
            smaller = name.endswith(("o_proj.weight", "down_proj.weight"))
            deviation = 0.02 * (6**-0.5 if smaller else 1)
            assert np.std(tensor) == pytest.approx(deviation, rel=0.15), name


def test_only_what_a_decoder_needs_is_made():
    """One mask where all layers see alike; two where some slide."""

    def masks(case):
        config = decoder_config(case)
        decoder = Decoder(config=config)
        shapes = jax.eval_shape(decoder.init, jax.random.key(0))
        row = (jax.ShapeDtypeStruct((2, 40), jnp.int32),) * 3
        return str(jax.make_jaxpr(decoder.hidden)(shapes, *row)).count("bool[2,40,40] = ge")

    assert [masks(case) for case in ("qwen3", "mistral", "gemma2")] == [1, 1, 2]


@pytest.mark.parametrize(
    ("case", "change", "sentence"),
    [
        ("qwen2", {"model_type": None}, "model_type None is not known; known are qwen2, qwen3, qw"),
        ("qwen2", {"model_type": ["qwen2"]}, r"model_type \['qwen2'\] is not known"),
        ("qwen2", {"rope_scaling": {"type": "yarn", "factor": 4}}, "for rope type 'yarn', which"),
        ("llama", {"rope_scaling": {"rope_type": "llama3"}}, "in rope_parameters, has no 'factor'"),
        ("llama", {"rope_scaling": "linear"}, "rope_scaling should be dict, is 'linear'"),
        ("llama", {"partial_rotary_factor": 0.5}, "asks for partial_rotary_factor 0.5, which is"),
        ("llama", {"attention_bias": True}, "asks for attention_bias True, which is not supported"),
        ("llama", {"mlp_bias": True}, "asks for mlp_bias True"),
        ("qwen3", {"attention_bias": True}, "asks for attention_bias True"),
        ("qwen3", {"hidden_act": "gelu"}, "asks for activation 'gelu'"),
        ("qwen3", {"hidden_size": "32"}, "hidden_size should be int, is '32'"),
        ("qwen3", {"vocab_size": None}, "has no 'vocab_size'"),
        (
            "qwen2_window",
            {"layer_types": ["full_attention"]},
            "layer_types names 1 layers of num_",
        ),
        ("gemma2", {"layer_types": ["chunked_attention"] * 3}, "layer type 'chunked_attention'"),
        ("gemma2", {"hidden_activation": "gelu"}, "asks for activation 'gelu'"),
        ("gemma3", {"use_bidirectional_attention": True}, "asks for use_bidirectional_attention"),
        (
            "gemma3",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}},
            "asks for scaled positions in layers that slide",
        ),
        ("qwen3_moe", {"mlp_only_layers": [0]}, r"asks for mlp_only_layers \[0\]"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "asks for decoder_sparse_step 2"),
        ("qwen3_moe", {"num_experts_per_tok": 7}, "num_experts_per_tok 7 is more than num_ex"),
        (
            "qwen3",
            {"num_key_value_heads": 3},
            "num_attention_heads 4 does not divide by num_key_va",
        ),
    ],
)
def test_what_the_decoder_does_not_do_is_refused(case, change, sentence):
    config = CASES[case] | change
    with pytest.raises(InputError, match=sentence) as error:
        family_of(config, "a/config.json").read_config(config, "a/config.json")
    assert str(error.value).startswith("a/config.json")


@pytest.mark.parametrize(
    ("case", "change", "expected"),
    [
        ("qwen2", {"rope_theta": None}, {"rope_theta": 10_000.0}),
        ("qwen2", {"rope_theta": 7}, {"rope_theta": 7.0}),
        (
            "qwen2",
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
            {"rope_theta": 1e6, "rope_scaling": None},
        ),
        ("qwen2", {"head_dim": None}, {"head_width": 8}),
        ("qwen2", {"num_key_value_heads": None}, {"key_value_heads": 4}),
        ("qwen3", {"head_dim": None}, {"head_width": 128}),
        ("gemma2", {"attn_logit_softcapping": None}, {"attention_softcap": None}),
        ("qwen2_window", {"max_window_layers": 3}, {"window": None, "sliding": ()}),
        (
            "qwen2_window",
            {"layer_types": ["sliding_attention", "full_attention", "full_attention"]},
            {"window": 9, "sliding": (True, False, False)},
        ),
        ("gemma2", {}, {"window": 9, "sliding": (True, False, True), "query_scalar": 10.0}),
        ("gemma3", {}, {"sliding": (True, True, False), "local_rope_theta": 50.0}),
        (
            "gemma3",
            {
                "rope_scaling": None,
                "rope_parameters": {
                    "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 3.0},
                    "sliding_attention": {"rope_type": "default", "rope_theta": 2.0},
                },
            },
            {
                "rope_theta": 3.0,
                "local_rope_theta": 2.0,
                "rope_scaling": LinearScaling(factor=2.0),
            },
        ),
        ("qwen3_moe", {}, {"feed_forward_width": 24, "experts": 6, "chosen_experts": 2}),
        ("qwen3_moe", {"num_experts": None, "num_local_experts": 5}, {"experts": 5}),
    ],
)
def test_spellings_of_several_versions_are_read(case, change, expected):
    config = CASES[case] | change
    read = family_of(config, "here").read_config(config, "here")
    assert {key: getattr(read, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("case", "key", "default"),
    [
        ("mistral", "sliding_window", {"window": 4096}),
        ("gemma2", "attn_logit_softcapping", {"attention_softcap": 50.0}),
        ("gemma2", "final_logit_softcapping", {"logits_softcap": 30.0}),
        ("gemma2", "tie_word_embeddings", {"tied_embedding": True}),
        ("llama", "tie_word_embeddings", {"tied_embedding": False}),
        ("gemma3", "rope_local_base_freq", {"local_rope_theta": 10_000.0}),
        ("gemma3", "rope_theta", {"rope_theta": 1_000_000.0}),
    ],
)
def test_an_absent_key_is_what_transformers_takes_it_for(case, key, default):
    config = {name: value for name, value in CASES[case].items() if name != key}
    read = family_of(config, "here").read_config(config, "here")
    assert {name: getattr(read, name) for name in default} == default


def test_llama3_scaling_by_hand():
    """Of 64 positions: over 4 turns kept, under 1 turn divided by 8, at 2.5 turns halfway."""
    scaling = Llama3Scaling(
        factor=8.0, low_frequency_factor=1.0, high_frequency_factor=4.0, original_max_positions=64
    )
    turns = np.array([10, 4, 2.5, 1, 0.1])
    scaled = scaling(turns * 2 * np.pi / 64) * 64 / (2 * np.pi)
    np.testing.assert_allclose(scaled, [10, 4, 2.5 * (0.5 + 0.5 / 8), 1 / 8, 0.1 / 8])


def test_options_that_contradict_each_other_are_refused():
    config = decoder_config("gemma2")
    for change in ({"window": None}, {"sliding": (True,)}, {"chosen_experts": 1}):
        with pytest.raises(ValueError, match=r"sliding names|experts a token"):
            dataclasses.replace(config, **change)
