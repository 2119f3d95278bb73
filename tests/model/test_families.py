"""Tests every family against golden files of transformers (tests/golden), and itself."""

import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.distributed.partition import for_decoding
from rl4p.model.decoder import Decoder
from rl4p.model.families import FAMILIES, family_of
from rl4p.model.families.keys import Keys
from rl4p.model.families.wrappers import WRAPPERS
from rl4p.model.pattern import places
from tests.golden import forward
from tests.golden.cases import CASES, decoder_config, make_tensors, sequences, to_tensors
from tests.golden.cases import to_params as assembled
from tests.golden.table import table

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
ROWS, WIDTH = sequences(), 64


# Of plain layers, windows, sinks with experts, delta rules, latents, and Mamba.
KINDS = ("llama", "gemma3", "gpt_oss", "qwen3_5", "deepseek_v3", "nemotron_h")


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """Returns a decoder, its parameters and the outputs of transformers for them."""
    config = decoder_config(request.param)
    with np.load(GOLDEN / f"{request.param}.npz") as file:
        golden = dict(file)
    return Decoder(config=config), assembled(config, make_tensors(config)), golden


@pytest.fixture(scope="module")
def plain(case):
    """Returns the logits of each sequence in a separate row."""
    decoder, params, _ = case
    # As in a test (`strict_promotion`), so that a test runs this program and traces none.
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        logits = np.asarray(forward.logits(decoder, params, *forward.rows(ROWS, WIDTH)))
    return [row[: len(tokens)] for row, tokens in zip(logits, ROWS, strict=True)]


@pytest.mark.quick(*KINDS)
def test_logits_are_those_of_transformers(case, plain):
    np.testing.assert_allclose(np.concatenate(plain), case[2]["logits"], atol=1e-4)


@pytest.mark.slow  # `make parity` compares them with the installed transformers
def test_gradients_are_those_of_transformers(case):
    forward.assert_gradient(*case)


def ways_of_decoding():
    """Returns all cases; those that decode as an earlier one are slow."""
    known = set()
    for case in CASES:
        c = decoder_config(case)
        way = (
            *(frozenset(c.kinds), c.window is None, c.attention_sinks, c.attention_softcap is None),
            *(type(c.rope_scaling), c.interleaved_rope, bool(c.query_growth), bool(c.experts)),
        )
        yield pytest.param(case, marks=[pytest.mark.slow] if way in known else [])
        known.add(way)


@pytest.mark.quick(*KINDS)
@pytest.mark.parametrize("case", [*ways_of_decoding()], indirect=True)
def test_greedy_tokens_are_those_of_transformers(case):
    decoder, params, golden = case
    ours = forward.greedy(decoder, params, np.int32(ROWS[1]), len(golden["greedy"]))
    np.testing.assert_array_equal(ours, golden["greedy"])


@pytest.mark.quick(*KINDS)
def test_padding_and_packing_change_nothing(case, plain):
    """All sequences in one row, the longest last, with padding; then each in a row padded left."""
    decoder, params, _ = case
    tokens, positions, segments = (np.zeros((3, WIDTH), np.int32) for _ in range(3))
    tokens[:] = 9
    spans = ((0, 1, 7, 0), (0, 3, 2, 1), (0, 19, 5, 2), (1, 50, 1, 1), (2, 24, 3, 2))
    for row, start, segment, which in spans:
        here = slice(start, start + len(ROWS[which]))
        tokens[row, here], positions[row, here] = ROWS[which], np.arange(len(ROWS[which]))
        segments[row, here] = segment
    logits = forward.logits(decoder, params, tokens, positions, segments)
    for row, start, _, which in spans:
        here = slice(start, start + len(ROWS[which]))
        np.testing.assert_allclose(logits[row, here], plain[which], atol=5e-5)


@pytest.mark.slow
def test_decoding_with_a_cache_changes_nothing(case, plain):
    """A prefill longer than the window, padded left, then tokens one by one."""
    decoder, params, _ = case
    padding, T = 3, len(ROWS[-1])
    tokens = np.pad(np.int32(ROWS[-1]), (padding, 0), constant_values=9)[None]
    positions = np.maximum(np.arange(padding + T, dtype=np.int32) - padding, 0)[None]
    segments = np.int32(np.arange(padding + T) >= padding)[None]
    params = for_decoding(params, decoder.dtype, places(decoder.config))
    cache = decoder.empty_cache(1, forward.SLOTS)
    starts = [0, *range(padding + 20, padding + T)]
    parts = []
    for start, end in zip(starts, [*starts[1:], padding + T], strict=True):
        chunk = (x[:, start:end] for x in (tokens, positions, segments))
        part, cache = forward.extend(decoder, params, *chunk, cache, start)
        parts.append(part)
    logits = np.concatenate(parts, axis=1)[0, padding:]
    np.testing.assert_allclose(logits, plain[-1], atol=5e-5)


def test_the_guide_says_what_works_with_which_layers():
    guide = GOLDEN.parents[1] / "docs" / "model_and_data.md"
    assert table() in guide.read_text(encoding="utf-8")


def test_a_configuration_comes_back_whole(case):
    config = case[0].config
    family = FAMILIES[config.family]
    written = family.write_config(config) | {"model_type": family.model_type}
    assert family_of(written, "here").read_config(Keys(written, "here")) == config


def test_every_parameter_has_names_and_no_other(case):
    """`assembled` fills in parameters that are nan at first."""
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(case[1]))


@pytest.mark.parametrize("case", ["llama", "gemma2", "qwen3_moe"])
def test_fresh_parameters(case):
    decoder = Decoder(config=decoder_config(case))
    params = jax.jit(decoder.init)(jax.random.key(0))
    for name, tensor in to_tensors(decoder.config, params).items():
        if name.endswith("norm.weight"):
            assert (tensor == (0 if case == "gemma2" else 1)).all(), name
        else:  # output projections are scaled by 1 / sqrt(2 x 3 layers)
            smaller = name.endswith(("o_proj.weight", "down_proj.weight"))
            deviation = 0.02 * (6**-0.5 if smaller else 1)
            assert np.std(tensor) == pytest.approx(deviation, rel=0.15), name


def test_only_what_a_decoder_needs_is_made():
    """One mask if all layers have the same view; two if some layers slide."""

    def masks(case):
        config = decoder_config(case)
        decoder = Decoder(config=config)
        shapes = jax.eval_shape(decoder.init, jax.random.key(0))
        row = (jax.ShapeDtypeStruct((2, 40), jnp.int32),) * 3
        return str(jax.make_jaxpr(decoder.hidden)(shapes, *row)).count("bool[2,40,40] = ge")

    assert [masks(case) for case in ("qwen3", "mistral", "gemma2")] == [1, 1, 2]


# Rows are divided among four devices, and heads and hidden units between two.
EIGHT = """
import dataclasses, re, sys
import jax, jax.numpy as jnp, numpy as np
from rl4p.distributed import collectives, partition
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.placement import for_sampling, param_shardings
from rl4p.model import pattern
from rl4p.model.decoder import Decoder
from rl4p.engine.cache import divided
from tests.golden import forward
from tests.golden.cases import decoder_config, make_tensors, to_params

mesh, case = Mesh(dp=2, fsdp=2, tp=2), sys.argv[1]
config = decoder_config(case)
params = to_params(config, make_tensors(config))
if config.experts % 4:  # eight, which four devices can divide: two more than the six
    config = dataclasses.replace(config, experts=8)
    for name, x in params["layers"]["experts"].items():
        axis = x.ndim - 1 if "router" in name else 1
        params["layers"]["experts"][name] = np.concatenate([x, -x.take([0, 1], axis)], axis)
decoder = Decoder(config=config)
mesh.check_divides(decoder.config.dimensions)
rows = np.random.default_rng(0).integers(0, 64, (8, 24)).astype(np.int32)
places, ones = np.broadcast_to(np.arange(24, dtype=np.int32), (8, 24)), np.ones((8, 24), np.int32)

def loss(params, rows):
    logits = decoder.logits(params, decoder.hidden(params, *rows))[:, :-1]
    logprobs = jax.nn.log_softmax(logits)
    return -jnp.sum(jnp.take_along_axis(logprobs, rows[0][:, 1:, None], axis=-1))

def on_each(params, rows):
    def gathered(params, rows):
        return loss(partition.gather(params, "float32"), rows)
    return collectives.total_gradient(mesh, jax.grad(gathered)(params, rows))

def run(params, rows):
    return collectives.on_rows(mesh, on_each, params, rows, results=collectives.parts(mesh, params))

sharded = jax.device_put(params, param_shardings(mesh, params))
ours = jax.device_get(jax.jit(run)(sharded, mesh.shard_rows((rows, places, ones))))
expected = jax.device_get(jax.jit(jax.grad(loss))(params, (rows, places, ones)))
near = 3e-5 if config.delta else 1e-5  # memories amplify rounding
for path, ours in jax.tree.leaves_with_path(ours):
    theirs = expected
    for key in path:
        theirs = theirs[key.key]
    if partition.declared(path).frozen:
        assert not ours.any() and not theirs.any()
        continue
    assert np.abs(theirs).max() > 1e-3, path
    assert np.linalg.norm(ours - theirs) <= near * np.linalg.norm(theirs), path

# A sampler's devices divide the parameters along tp.
at = pattern.places(config)
given = for_sampling(mesh, sharded, "float32", at)
alone = partition.for_decoding(params, "float32", at)
cache = decoder.empty_cache(8, 24)
row = (rows, places, ones)
ours, _ = forward.extend(decoder, given, *mesh.replicate(row), mesh.replicate(cache), 0)
expected, _ = forward.extend(decoder, alone, *row, cache, 0)
limit = 1.2e-5 * np.abs(expected).max()  # sums in another order
np.testing.assert_allclose(ours, expected, atol=limit)

# Two devices have the same KV head, and each has its own rows of the cache.
heads = decoder.config.cached_heads
tp = max(2 * heads, 4)
layout = dataclasses.replace(mesh, sampling_tp=tp).sampling_mesh(decoder.config.heads, heads)
assert (layout.devices.shape["fsdp"], layout.devices.shape["tp"]) == (tp // heads, heads)
given, begin = for_sampling(layout, sharded, "float32", at), divided(cache, layout)
ours, ended = forward.extend(decoder, given, *layout.shard_rows(row), begin, 0, mesh=layout)
np.testing.assert_allclose(ours, expected, atol=limit)
mixers = [kind.mixer for kind in config.kinds]
if config.latent is None:
    keys = ended.layers[mixers.index("attention")][0]
    own = heads, keys.shape[1] // heads, *keys.shape[2:]
    assert keys.addressable_shards[0].data.shape == own, keys.shape
else:  # the same for all heads
    keys = ended.layers[0][0]
    assert keys.addressable_shards[0].data.shape == (1, *keys.shape[1:]), keys.shape

# They exchange rows and heads before and after the attention of each layer; of a query for latents,
# they exchange two parts.
one = layout.shard_rows((rows[:, :1], places[:, :1], ones[:, :1]))
text = forward.extend.lower(decoder, given, *one, begin, 0, mesh=layout).compile().as_text()
exchanges = 2 * mixers.count("attention") + 3 * mixers.count("latent")
assert len(re.findall(r"all-to-all(?:-start)?\\(", text)) == exchanges
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        *("gemma3", "qwen3_moe", "smollm3", "olmo3", "gpt_oss", "phi3", "dots1"),
        *(
            "arcee_biases",
            "apertus",
            "hyperclovax",
            "cohere2",
            "qwen2_moe_dense",
            "nemotron_h_moe",
            "lfm2",
            "deepseek_v3",
            "gemma4",
            "gemma4_shared",
            "gemma4_moe",
            "llama4",
            "qwen3_5_whole",
        ),
    ],
)
def test_eight_devices_equal_one(case, on_devices):
    done = subprocess.run(
        [sys.executable, "-c", EIGHT, case], env=on_devices(8), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


# Two devices divide the columns of a row.
COLUMNS = """
import sys
import jax, numpy as np
from rl4p.distributed import collectives, partition
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.placement import param_shardings
from rl4p.model.decoder import Decoder
from tests.golden.cases import decoder_config, make_tensors, to_params

config = decoder_config(sys.argv[1])
params, decoder = to_params(config, make_tensors(config)), Decoder(config=config)
rows = np.random.default_rng(0).integers(0, 64, (4, 24)).astype(np.int32)
places, ones = np.broadcast_to(np.arange(24, dtype=np.int32), (4, 24)), np.ones((4, 24), np.int32)
expected = np.asarray(jax.jit(decoder.hidden)(params, rows, places, ones))

def hidden(params, rows):
    return collectives.whole(decoder.hidden(partition.gather(params, "float32"), *rows))

for mesh in (Mesh(dp=1, cp=2), Mesh(dp=1, cp=2, tp=2)):
    run = jax.jit(lambda params, rows, mesh=mesh: collectives.on_rows(
        mesh, hidden, params, rows, results=collectives.REPLICATED
    ))
    ours = run(jax.device_put(params, param_shardings(mesh, params)), (rows, places, ones))
    np.testing.assert_allclose(ours, expected, atol=4e-5)
assert np.abs(expected).max() > 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("case", ["gemma4", "gemma4_shared", "exaone4"])
def test_devices_that_divide_columns_equal_one(case, on_devices):
    done = subprocess.run(
        [sys.executable, "-c", COLUMNS, case], env=on_devices(4), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("model_type", "nearest"),
    [
        (None, ""),
        (["qwen2"], ""),
        ("mamba", ""),
        ("qwen3_next_next", ""),
        ("xglm", ""),
        ("gpt_neox", ""),
        ("gptoss", " (did you mean gpt_oss?)"),
        ("Qwen3-MoE", " (did you mean qwen3_moe?)"),
    ],
)
def test_a_family_that_is_not_known_is_refused(model_type, nearest):
    config = CASES["qwen2"] | {"model_type": model_type}
    sentence = f"a/config.json: model_type {model_type!r} is not supported{nearest}; use "
    sentence += f"{', '.join([*FAMILIES, *WRAPPERS])}."
    with pytest.raises(InputError, match=f"^{re.escape(sentence)}$"):
        family_of(config, "a/config.json")
