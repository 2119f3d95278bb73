"""Tests bases that are held in 4 bits, under adapters that are trained."""

import json
import subprocess
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from rl4p.base.errors import InputError
from rl4p.base.types import Microbatching, Prompt, Sampling, TrainingBatch
from rl4p.distributed.mesh import Mesh
from rl4p.learner.gradient_step import gradient_step
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.learner.optimizer import AdamW
from rl4p.model import pretrained
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import read_config, read_params, write_model, write_policy
from rl4p.model.lora import LoRA
from rl4p.model.pretrained import Pretrained
from rl4p.model.quantization import (
    BLOCK,
    NF4_VALUES,
    NF4Kernel,
    dequantize_fp8,
    dequantize_mxfp4,
    fp8_block,
    quantize_nf4,
)
from rl4p.model.scratch import Scratch
from rl4p.model.tensor_files import stored_tensors
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.update.reinforce import Reinforce
from tests.golden.cases import decoder_config, make_tensors

RANK = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory, policy):
    """Returns the folder of a model whose projections have 128 and 256 inputs."""
    folder = tmp_path_factory.mktemp("base")
    model = Scratch(width=128, layers=2, heads=4, num_kv_heads=2, feed_forward_width=256)
    own, params = model.build(Mesh(dp=1), jax.random.key(0))
    noise = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: np.float32(x + noise.normal(0, 0.05, x.shape)), jax.device_get(params)
    )
    decoder = replace(own.decoder, config=replace(own.decoder.config, attention_bias=True))
    for name in ("query", "key", "value"):
        kernel = params["layers"][name]["kernel"]
        params["layers"][name]["bias"] = np.float32(noise.normal(0, 0.1, (2, kernel.shape[-1])))
    write_model(folder, decoder, params, (256,))
    policy.tokenizer.save_pretrained(folder)
    return folder


def build(folder, mesh=None, **options):
    options = {"param_dtype": "nf4", "lora": LoRA(rank=RANK)} | options
    return Pretrained(path=str(folder), **options).build(mesh or Mesh(dp=1), jax.random.key(0))


def plain(params):
    """Returns parameters with their kernels in float32."""
    whole = lambda x: x.astype(jnp.float32)  # noqa: E731
    return jax.tree.map(whole, params, is_leaf=lambda x: isinstance(x, NF4Kernel))


def test_numbers_are_rounded_to_the_nearest_of_their_block():
    random = np.random.default_rng(0)
    kernel_LDF = np.float32(random.normal(0, 1, (2, 3 * BLOCK, 5)))
    kernel_LDF[1, :BLOCK, 2] = 0
    packed = quantize_nf4(kernel_LDF)
    assert packed.shape == kernel_LDF.shape
    assert packed.codes.dtype == np.uint8
    got_LDF = np.asarray(packed.astype(jnp.float32))
    for layer, column, block in np.ndindex(2, 5, 3):
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        numbers = kernel_LDF[layer, rows, column]
        largest = np.abs(numbers).max()
        choices = NF4_VALUES * largest
        nearest = choices[np.abs(numbers[:, None] - choices).argmin(axis=1)]
        np.testing.assert_array_equal(got_LDF[layer, rows, column], nearest)
    assert np.abs(got_LDF - kernel_LDF).mean() < 0.1  # of a normal distribution


def test_the_values_are_quantiles_of_the_normal_distribution():
    """The construction of 2305.14314: eight quantiles above 0, seven below, and 0."""
    from statistics import NormalDist

    edge = (1 - 1 / 32 + 1 - 1 / 30) / 2
    upper = [NormalDist().inv_cdf(x) for x in np.linspace(edge, 0.5, 9)[:-1]]
    lower = [-NormalDist().inv_cdf(x) for x in np.linspace(edge, 0.5, 8)[:-1]]
    expected = np.array(sorted([*upper, 0.0, *lower]))
    np.testing.assert_allclose(NF4_VALUES, expected / expected.max(), atol=1e-6)


@pytest.mark.slow
def test_a_kernel_of_4_bits_takes_little_memory(folder):
    policy, adapters = build(folder)
    projections = [
        x for path, x in jax.tree.leaves_with_path(policy.frozen, is_leaf=is_packed) if is_packed(x)
    ]
    assert len(projections) == 7
    numbers = sum(np.prod(x.shape) for x in projections)
    held = sum(leaf.nbytes for x in projections for leaf in jax.tree.leaves(x))
    assert held / numbers <= 0.6
    rest = [x for x in jax.tree.leaves(policy.frozen, is_leaf=is_packed) if not is_packed(x)]
    assert {str(x.dtype) for x in rest} == {"bfloat16"}
    assert {str(x.dtype) for x in jax.tree.leaves(adapters)} == {"float32"}


def is_packed(x):
    return isinstance(x, NF4Kernel)


def test_the_base_is_that_of_the_folder(folder):
    policy, _ = build(folder)
    expected = read_params(folder, policy.decoder, "float32")

    def check(path, x, kernel):
        if path[0].key == "layers" and path[-1].key == "kernel":
            wanted = quantize_nf4(np.asarray(kernel))
            np.testing.assert_array_equal(x.codes, wanted.codes)
            np.testing.assert_array_equal(x.scales, wanted.scales)
        else:
            np.testing.assert_array_equal(x, kernel.astype(jnp.bfloat16))

    jax.tree.map_with_path(check, policy.frozen, expected, is_leaf=is_packed)


EIGHT = """
import sys
import jax
import numpy as np
import pytest
from rl4p.distributed import collectives, partition
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.placement import for_sampling
from rl4p.base.errors import InputError
from rl4p.model.lora import LoRA, merge_trees
from rl4p.model.pretrained import Pretrained
from tests.golden import forward

model = Pretrained(path=sys.argv[1], param_dtype="nf4", lora=LoRA(rank=2))
mesh = Mesh(dp=2, fsdp=2, tp=2)
(policy, adapters), (alone, own) = (model.build(m, jax.random.key(0)) for m in (mesh, Mesh(dp=1)))
jax.tree.map(np.testing.assert_array_equal, policy.frozen, alone.frozen)
codes = policy.frozen["layers"]["up"]["kernel"].codes
assert codes.sharding.shard_shape(codes.shape) == (2, 32, 128), codes.sharding

decoder = policy.decoder
rows = np.random.default_rng(0).integers(0, 64, (8, 24)).astype(np.int32)
places, ones = np.broadcast_to(np.arange(24, dtype=np.int32), (8, 24)), np.ones((8, 24), np.int32)

def loss(adapters, frozen, rows):
    params = merge_trees(frozen, adapters)
    logits = decoder.logits(params, decoder.hidden(params, *rows))[:, :-1]
    logprobs = jax.nn.log_softmax(logits)
    return -jax.numpy.sum(jax.numpy.take_along_axis(logprobs, rows[0][:, 1:, None], axis=-1))

def on_each(both, rows):
    frozen, adapters = both

    def gathered(adapters, rows):
        return loss(
            partition.gather(adapters, "float32"), partition.gather(frozen, "float32"), rows
        )

    return collectives.total_gradient(mesh, jax.grad(gathered)(adapters, rows))

def run(frozen, adapters, rows):
    both, parts = (frozen, adapters), collectives.parts(mesh, adapters)
    return collectives.on_rows(mesh, on_each, both, rows, results=parts)

both = rows, places, ones
ours = jax.device_get(jax.jit(run)(policy.frozen, adapters, mesh.shard_rows(both)))
expected = jax.device_get(jax.jit(jax.grad(loss))(own, alone.frozen, both))

def check(a, b):
    assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b), (a, b)

jax.tree.map(check, ours, expected)
assert np.abs(expected["layers"]["down"]["lora_b"]).max() > 1e-3

given = for_sampling(mesh, policy.merged(adapters), "bfloat16")
assert given["layers"][0]["up"]["kernel"].scales.dtype == "float32"
given = for_sampling(mesh, policy.merged(adapters), "float32")
wanted = partition.for_decoding(alone.merged(own), "float32")
cache = decoder.empty_cache(8, 24)
ours, _ = forward.extend(decoder, given, *mesh.replicate(both), mesh.replicate(cache), 0)
expected, _ = forward.extend(decoder, wanted, *both, cache, 0)
np.testing.assert_allclose(ours, expected, atol=2e-5)

with pytest.raises(InputError, match="blocks cannot be divided among the devices"):
    model.build(Mesh(dp=2, fsdp=4), jax.random.key(0))
"""


@pytest.mark.slow
def test_eight_devices_hold_whole_blocks_and_equal_one(folder, on_devices):
    done = subprocess.run(
        [sys.executable, "-c", EIGHT, str(folder)],
        env=on_devices(8),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_abstract_parameters_are_those_that_are_built(folder):
    model = Pretrained(path=str(folder), param_dtype="nf4", lora=LoRA(rank=RANK))
    built, shaped = (make(Mesh(dp=1)) for make in (lambda m: build(folder, m), model.abstract))
    for a, b in zip((built[0].frozen, built[1]), (shaped[0].frozen, shaped[1]), strict=True):
        assert jax.tree.structure(a) == jax.tree.structure(b)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
            assert (x.shape, x.dtype, x.sharding) == (y.shape, y.dtype, y.sharding)


def logprobs(policy, params, trajectories):
    options = ScoreOptions(
        decoder=policy.decoder, sampling=Sampling(), microbatching=Microbatching(tokens=128)
    )
    return score_tokens(options, params, trajectories)["logprobs"]


@pytest.mark.slow
def test_a_product_is_that_of_the_kernel_in_full(folder, make_trajectories):
    policy, adapters = build(folder)
    random = np.random.default_rng(1)
    adapters = jax.tree.map(lambda x: x + np.float32(random.normal(0, 0.1, x.shape)), adapters)
    trajectories = make_trajectories()
    packed = policy.merged(adapters)
    expected = logprobs(policy, plain(packed), trajectories)
    np.testing.assert_allclose(logprobs(policy, packed, trajectories), expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_adapters_are_trained_as_on_the_kernel_in_full(
    folder, make_trajectories, make_state, make_objective
):
    policy, adapters = build(folder)
    trajectories = make_trajectories()
    mask = trajectories.response_mask_BT
    batch = TrainingBatch(
        trajectories=trajectories,
        advantages_BT=jnp.where(mask, 1.0, 0.0),
        loss_mask_BT=mask,
        scores={},
    )
    optimizer, trained = AdamW(learning_rate=1e-2), []
    for frozen in (policy.frozen, plain(policy.frozen)):
        objective = make_objective(Reinforce(), decoder=policy.decoder)
        state = make_state(jax.tree.map(jnp.copy, adapters), optimizer)
        state, metrics = gradient_step(objective, optimizer, frozen, state, batch, {})
        trained.append((state.params, float(metrics["update/grad_norm"])))
    (packed, norm), (whole, expected) = trained
    assert norm == pytest.approx(expected, rel=1e-4)
    assert norm > 0
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), packed, whole)


@pytest.mark.slow
def test_the_sampler_draws_from_the_policy_that_is_trained(folder):
    policy, adapters = build(folder, dtype="bfloat16")
    adapters = jax.tree.map(lambda x: x + 0.05, adapters)
    prompts = [Prompt(id="a", question="q", answer="a", task="t", tokens=(5, 6, 7))]
    trajectories, _ = NaiveSampler(max_response_tokens=8)(
        policy, adapters, prompts, group_size=4, key=jax.random.key(0), version=0
    )
    scored = logprobs(policy, policy.merged(adapters), trajectories)
    mask = np.asarray(trajectories.response_mask_BT)
    gap = np.abs(np.asarray(scored) - np.asarray(trajectories.behaviour_logprobs_BT))[mask]
    assert gap.max() < 0.05  # bfloat16


def test_an_export_has_the_adapters_merged_into_the_numbers(folder, tmp_path):
    policy, adapters = build(folder)
    adapters = jax.tree.map(lambda x: x + 0.05, adapters)
    write_policy(tmp_path / "out", policy, adapters, dtype="float32")
    read = read_params(tmp_path / "out", policy.decoder, None)
    kernel, beside = (tree["layers"]["down"] for tree in (policy.frozen, adapters))
    expected = np.asarray(kernel["kernel"].astype(jnp.float32), np.float64)
    expected = expected + policy.decoder.lora.scale * (
        np.asarray(beside["lora_a"], np.float64) @ np.asarray(beside["lora_b"], np.float64)
    )
    np.testing.assert_allclose(read["layers"]["down"]["kernel"], expected, atol=1e-5)


def test_options_that_do_not_go_together_are_refused(folder, monkeypatch):
    with pytest.raises(ValueError, match=r"only adapters can be trained: set model.lora.rank"):
        Pretrained(path=str(folder), param_dtype="nf4")
    with pytest.raises(ValueError, match="would keep the matrices of all layers"):
        Pretrained(path=str(folder), param_dtype="nf4", lora=LoRA(rank=1), remat="none")
    shape = pretrained.read_config(folder)
    config = replace(shape, experts=4, chosen_experts=2)
    monkeypatch.setattr(pretrained, "read_config", lambda _: config)
    with pytest.raises(InputError, match="no experts in 4 bits"):
        build(folder)


def test_projections_without_whole_blocks_are_refused(policy, params, tmp_path):
    write_model(tmp_path, policy.decoder, params, (256,))
    policy.tokenizer.save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"a multiple of 64 inputs, but .* has"):
        build(tmp_path)


def random_blocks(count, groups, out):
    """Returns random blocks and scales, and the numbers that they stand for, [count, in, out]."""
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (count, out, groups, 16), np.uint8)
    scales = random.integers(120, 130, (count, out, groups), np.uint8)
    numbers = np.zeros((count, groups * 32, out))
    for place in np.ndindex(blocks.shape):
        n, o, group, byte = place
        code = int(blocks[place])
        for i, four in enumerate((code & 15, code >> 4)):
            exponent, mantissa = (four >> 1) & 3, four & 1
            size = mantissa / 2 if exponent == 0 else (1 + mantissa / 2) * 2.0 ** (exponent - 1)
            size *= 2.0 ** (int(scales[n, o, group]) - 127)
            numbers[n, group * 32 + 2 * byte + i, o] = -size if four & 8 else size
    return {"blocks": blocks, "scales": scales}, numbers


def test_a_byte_is_two_numbers_of_a_shared_scale(tmp_path):
    """Codes 0 to 7 are 0, 1/2, 1, 3/2, 2, 3, 4 and 6, and 8 to 15 the same below 0."""
    stored, numbers = random_blocks(2, 3, 5)
    other = {"plain": np.ones(3, np.float32), "alone_blocks": stored["blocks"]}
    save_file(other | {f"a_{x}": y for x, y in stored.items()}, tmp_path / "model.safetensors")
    tensors = dequantize_mxfp4(stored_tensors(tmp_path))
    assert sorted(tensors) == ["a", "alone_blocks", "plain"]
    assert (tensors["a"].kind, tensors["a"].shape) == ("BF16", (2, 96, 5))
    assert len(np.unique(np.abs(numbers[0, :32, 0] / numbers[0, :32, 0].max()))) > 4
    for rows in (slice(0, 2), slice(1, 2)):
        pieces = list(tensors["a"].pieces(rows))
        assert [first for first, _ in pieces] == [*range(rows.start, rows.stop)]
        ours = np.concatenate([piece for _, piece in pieces])
        assert ours.dtype == jnp.bfloat16
        np.testing.assert_array_equal(ours.astype(np.float64), numbers[rows])


@pytest.mark.parametrize("dtype", [None, "float32"])
def test_a_folder_with_such_weights_is_read(tmp_path, dtype):
    """Neighbours in the last axis are a gate and an up projection."""
    config = replace(decoder_config("gpt_oss"), feed_forward_width=32)
    decoder, tensors = Decoder(config=config), make_tensors(config)
    name, (stored, numbers) = "model.layers.1.mlp.experts.gate_up_proj", random_blocks(6, 1, 64)
    del tensors[name]
    tensors |= {f"{name}_{x}": y for x, y in stored.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    experts = read_params(tmp_path, decoder, dtype)["layers"]["experts"]
    for i, kernel in enumerate(("gate", "up")):
        np.testing.assert_array_equal(np.float64(experts[kernel][1]), numbers[..., i::2])
        assert experts[kernel].dtype == jnp.float32  # the other layers are not quantized
    tensors[f"{name}_scales"] = stored["scales"][:, :5]
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="quantized"):
        read_params(tmp_path, decoder, dtype)


def eights(shape, block, seed=0):
    """Returns codes of 8 bits, a scale for each block, and the numbers that they stand for."""
    random = np.random.default_rng(seed)
    codes = random.integers(0, 127, shape, np.uint8) + 128 * random.integers(0, 2, shape, np.uint8)
    grid = tuple(-(-n // size) for n, size in zip(shape, block, strict=True))
    scales = random.uniform(1e-3, 2e-3, grid).astype(np.float32)
    numbers = np.zeros(shape)
    for place in np.ndindex(*shape):
        code = int(codes[place])
        exponent, mantissa = (code >> 3) & 15, code & 7
        size = (
            mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        )
        scale = scales[place[0] // block[0], place[1] // block[1]]
        numbers[place] = (-size if code & 128 else size) * np.float64(scale)
    return codes.view(jnp.float8_e4m3fn), scales, numbers


def test_a_byte_is_a_number_of_a_scaled_block(tmp_path, monkeypatch):
    """Also where the last blocks are not whole, and where a piece begins within a block."""
    monkeypatch.setattr("rl4p.model.tensor_files.PIECE_BYTES", 3 * 7)
    weight, scales, numbers = eights((8, 7), (5, 3))
    tensors = {"a": weight, "a_scale_inv": scales, "b": weight, "b_scale_inv": scales[:1]}
    save_file(tensors, tmp_path / "model.safetensors")
    read = dequantize_fp8(stored_tensors(tmp_path), (5, 3))
    assert sorted(read) == ["a", "b", "b_scale_inv"]
    assert (read["a"].kind, read["a"].shape, read["b"].kind) == ("BF16", (8, 7), "F8_E4M3")
    for rows in (slice(0, 8), slice(4, 6)):
        pieces = list(read["a"].pieces(rows))
        assert len(pieces) == (3 if rows.start == 0 else 1)
        ours = np.concatenate([piece for _, piece in pieces])
        np.testing.assert_allclose(ours, numbers[rows], rtol=1e-6)


SECTION = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [16, 8]}


@pytest.fixture
def eight_bits(tmp_path):
    """Returns a folder of 8-bit projections, and what they stand for by their names."""

    def make(case, section=SECTION):
        decoder = Decoder(config=decoder_config(case))
        write_model(tmp_path, decoder, decoder.init(jax.random.key(0)), (256,))
        expected = make_tensors(decoder.config)
        tensors = dict(expected)
        for seed, name in enumerate(sorted(tensors)):
            if not name.endswith("_proj.weight"):
                continue
            made = eights(tensors[name].shape, (16, 8), seed)
            tensors[name], tensors[f"{name}_scale_inv"], expected[name] = made
        save_file(tensors, tmp_path / "model.safetensors")
        path = tmp_path / "config.json"
        config = json.loads(path.read_text()) | {"quantization_config": section}
        path.write_text(json.dumps(config))
        return tmp_path, decoder, expected

    return make


@pytest.mark.slow
@pytest.mark.parametrize("case", ["deepseek_v3", "qwen3_moe"])
def test_a_folder_of_8_bits_is_read_and_exported_in_full(eight_bits, case):
    folder, decoder, expected = eight_bits(case)
    assert read_config(folder) == decoder.config
    params = read_params(folder, decoder, "float32")
    out = folder / "out"
    out.mkdir()
    write_model(out, decoder, params, (256,), dtype="bfloat16")
    assert "quantization_config" not in json.loads((out / "config.json").read_text())
    written, changed = stored_tensors(out), 0
    assert written.keys() == expected.keys()
    for name, tensor in written.items():
        assert tensor.kind == "BF16" or "correction" in name
        ours = np.concatenate([x for _, x in tensor.pieces(slice(0, tensor.shape[0]))])
        np.testing.assert_allclose(np.float32(ours), expected[name], rtol=2**-8, atol=1e-6)
        changed += name.endswith("_proj.weight")
    assert changed > 8
    kernel = (
        read_params(folder, decoder, None)["layers"]["output"]["kernel"]
        if case == "qwen3_moe"
        else None
    )
    assert kernel is None or kernel.dtype == jnp.bfloat16


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "more",
    [
        *[{"weight_block_size": None}, {"weight_block_size": [128]}, {"weight_block_size": [0, 8]}],
        *[{"activation_scheme": "static"}, {"scale_fmt": "ue8m0"}, {"expert_dtype": "fp4"}],
        *[{"quant_method": "gptq"}, {"fmt": "e5m2"}, {"modules_to_convert": ["embed_tokens"]}],
    ],
)
def test_other_8_bits_are_refused(eight_bits, more):
    assert fp8_block(SECTION | {"activation_scheme": "dynamic"}) == (16, 8)
    assert fp8_block(SECTION | more) is None
    folder, *_ = eight_bits("qwen3_moe", SECTION | more)
    with pytest.raises(InputError, match="has a quantization_config"):
        read_config(folder)
