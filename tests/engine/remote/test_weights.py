"""Tests the folder through which weights reach servers."""

import dataclasses
import hashlib
import json
import os
import resource
import subprocess
import sys
import zlib
from contextlib import contextmanager
from copy import copy

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from rl4p.base.errors import InputError, RunError
from rl4p.distributed.mesh import Mesh
from rl4p.engine.remote.weights import Probe, WeightsFolder
from rl4p.model.lora import LoRA
from rl4p.model.pretrained import Pretrained
from rl4p.model.scratch import Scratch
from rl4p.rollout.remote_sampler import token_logprobs

SHARD = 20_000  # bytes; the model has 24 kB in each layer


@pytest.fixture
def weights(tmp_path):
    found = WeightsFolder(tmp_path / "shared" / "disk", shard_bytes=SHARD)
    yield found
    found.close()


def changed(params, *path):
    """Returns the parameters with another array at a path."""
    if not path:
        return params + 1
    return params | {path[0]: changed(params[path[0]], *path[1:])}


def tensors_of(folder):
    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


def everything_in(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.slow
def test_a_folder_holds_all_that_a_server_opens(weights, policy, params):
    exported = weights.write(policy, params, "step-3")
    assert exported.path.is_absolute()
    assert exported.label == "step-3"
    names = {path.name for path in exported.path.iterdir()}
    assert {"config.json", "generation_config.json", "tokenizer.json"} < names
    assert "model.safetensors.index.json" in names
    read, found = Pretrained(path=str(exported.path)).build(Mesh(dp=1), jax.random.key(0))
    assert read.decoder.config == policy.decoder.config
    assert read.end_ids == policy.end_ids
    assert read.tokenizer.get_vocab() == policy.tokenizer.get_vocab()
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_checksums_are_of_the_bytes_in_the_files(weights, policy, params):
    exported = weights.write(policy, params, "1")
    tensors = tensors_of(exported.path)
    assert exported.checksums == {
        name: f"{zlib.crc32(x.tobytes()):08x}" for name, x in tensors.items()
    }
    assert exported.sha256() == {
        name: hashlib.sha256(x.tobytes()).hexdigest() for name, x in tensors.items()
    }


def test_matrices_have_the_dtype_of_activations(weights, policy, params):
    half = dataclasses.replace(
        policy, decoder=dataclasses.replace(policy.decoder, dtype="bfloat16")
    )
    exported = weights.write(half, params, "1")
    kinds = {name: x.dtype.name for name, x in tensors_of(exported.path).items()}
    assert kinds["model.embed_tokens.weight"] == "bfloat16"
    assert kinds["model.layers.1.mlp.up_proj.weight"] == "bfloat16"
    assert kinds["model.layers.1.input_layernorm.weight"] == "float32"
    assert json.loads((exported.path / "config.json").read_text())["dtype"] == "bfloat16"


def test_adapters_are_merged(weights, policy, params):
    decoder = dataclasses.replace(policy.decoder, lora=LoRA(rank=2, alpha=6.0, targets="up"))
    adapted = dataclasses.replace(policy, decoder=decoder, frozen=params)
    adapters = jax.tree.map(lambda x: x + 1, decoder.lora.init(jax.random.key(0), params))
    tensors = tensors_of(weights.write(adapted, adapters, "1").path)
    up = adapters["layers"]["up"]
    merged = params["layers"]["up"]["kernel"] + 3.0 * np.matmul(up["lora_a"], up["lora_b"])
    for layer in range(2):
        found = tensors[f"model.layers.{layer}.mlp.up_proj.weight"]
        np.testing.assert_allclose(found, merged[layer].T, rtol=1e-5, atol=1e-6)
    assert not [name for name in tensors if "lora" in name]


def test_a_critic_stays_at_home(weights, policy, params):
    exported = weights.write(policy, params | {"critic": {"head": params["embedding"]}}, "1")
    assert exported.checksums.keys() == weights.write(policy, params, "2").checksums.keys()


def test_files_that_have_not_changed_are_linked(weights, policy, params):
    first = weights.write(policy, params, "1")
    second = weights.write(policy, changed(params, "layers", "up", "kernel"), "2")
    assert first.checksums.keys() == second.checksums.keys()
    differing = {k for k, v in first.checksums.items() if second.checksums[k] != v}
    assert differing == {f"model.layers.{i}.mlp.up_proj.weight" for i in range(2)}
    linked = written = 0
    for file in sorted(second.path.iterdir()):
        same = file.samefile(first.path / file.name)
        if file.suffix == ".safetensors":
            assert same == (not differing & load_file(file).keys())
            linked, written = linked + same, written + (not same)
    assert linked > written > 0
    assert (second.path / "tokenizer.json").samefile(first.path / "tokenizer.json")
    np.testing.assert_array_equal(
        tensors_of(second.path)["model.layers.1.mlp.up_proj.weight"],
        params["layers"]["up"]["kernel"][1].T + 1,
    )


def test_a_disk_without_links_gets_copies(weights, policy, params, monkeypatch):
    def refuse(*_):
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    first, second = (weights.write(policy, params, label) for label in "12")
    for file in first.path.iterdir():
        assert file.read_bytes() == (second.path / file.name).read_bytes()
        assert not file.samefile(second.path / file.name)


def test_only_kept_labels_stay(weights, policy, params):
    first, second, again, third = (weights.write(policy, params, label) for label in "1223")
    assert len({first.path, second.path, again.path, third.path}) == 4
    weights.keep(["2", "3"])
    assert [x.path.exists() for x in (first, second, again, third)] == [False, False, True, True]
    assert tensors_of(again.path)  # its files were links to those of the deleted ones
    weights.keep({"9"})
    assert [path for path in weights.path.iterdir() if path.name != ".tokenizer"] == []


def test_deleted_weights_are_not_linked_to(weights, policy, params):
    """The newest are deleted and older ones stay: what is new must not become what is old."""
    weights.write(policy, params, "1")
    other = changed(params, "embedding")
    weights.write(policy, other, "2")
    weights.keep(["1"])
    third = weights.write(policy, other, "3")
    np.testing.assert_array_equal(
        tensors_of(third.path)["model.embed_tokens.weight"], other["embedding"]
    )
    assert tensors_of(third.path).keys() == third.checksums.keys()


def test_two_runs_share_a_parent_and_delete_only_their_own(tmp_path, policy, params):
    one, two = WeightsFolder(tmp_path), WeightsFolder(tmp_path)
    exported = one.write(policy, params, "1"), two.write(policy, params, "1")
    one.close()
    assert not exported[0].path.exists()
    assert tensors_of(exported[1].path)
    two.close()
    assert list(tmp_path.iterdir()) == []
    two.close()


@contextmanager
def files_of_at_most(size):
    """Makes writes beyond this size fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [100, 10_000, 34_000])
def test_a_full_disk_is_one_error_and_leaves_nothing(weights, policy, params, size):
    """The header does not fit, or the first tensor of a file, or the second."""
    before = weights.write(policy, params, "1")
    there = everything_in(weights.path)
    other = changed(changed(params, "embedding"), "layers", "up", "kernel")
    weights.shard_bytes = 10**9 if size == 34_000 else SHARD
    with files_of_at_most(size), pytest.raises(RunError) as error:
        weights.write(policy, other, "2")
    assert str(error.value).startswith(f"The weights 2 could not be written to {weights.path}: ")
    assert "File too large" in str(error.value)
    assert everything_in(weights.path) == there
    assert tensors_of(before.path).keys() == before.checksums.keys()
    assert tensors_of(weights.write(policy, other, "2").path)


def test_a_tokenizer_that_cannot_be_written_is_the_same_error(weights, policy, params, monkeypatch):
    def fail(folder):
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer.json").write_text("half")
        raise Exception("No space left on device")  # as the tokenizers library does

    with monkeypatch.context() as patch:
        patch.setattr(policy.tokenizer, "save_pretrained", fail)
        with pytest.raises(RunError, match=r"could not be written to .*: No space left on device"):
            weights.write(policy, params, "1")
    assert everything_in(weights.path) == []
    text = (weights.write(policy, params, "1").path / "tokenizer.json").read_text()
    assert text != "half"


def test_a_parent_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"The folder for weights cannot be created: .*file"):
        WeightsFolder(tmp_path / "file")


@pytest.mark.parametrize("label", ["", "../1", "a/b", ".hidden", "a b", "1\n"])
def test_a_label_is_part_of_a_name(weights, policy, params, label):
    with pytest.raises(InputError, match="must consist of letters, digits and any of"):
        weights.write(policy, params, label)
    assert everything_in(weights.path) == []


KILLED = """
import sys
from pathlib import Path
import jax
import jax.numpy as jnp
from rl4p.distributed.mesh import Mesh
from rl4p.model import tensor_files
from rl4p.model.scratch import Scratch
from rl4p.engine.remote.weights import WeightsFolder

policy, params = Scratch(width=32, layers=2, heads=4).build(Mesh(dp=1), jax.random.key(0))
weights = WeightsFolder(Path(sys.argv[1]), shard_bytes=20_000)
weights.write(policy, params, "whole")
write, count = tensor_files.write_file, 0

def slow(*arguments):
    global count
    count += 1
    if count == 3:
        print("now", flush=True)
        sys.stdin.read()  # until it is killed
    return write(*arguments)

tensor_files.write_file = slow
weights.write(policy, jax.tree.map(lambda x: x + 1, params), "fragment")
"""


@pytest.mark.slow
def test_a_killed_process_leaves_no_folder_that_looks_complete(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "now\n"
        process.kill()
    (folder,) = tmp_path.iterdir()
    assert [path.name for path in folder.iterdir() if path.name[0] != "."] == ["1-whole"]
    assert len(list((folder / ".2-fragment").iterdir())) == 2  # it was within the writing
    Pretrained(path=str(folder / "1-whole")).build(Mesh(dp=1), jax.random.key(0))


@pytest.fixture(scope="module")
def probe(policy):
    return Probe(policy, token_logprobs)


def with_limit(probe, limit):
    """Returns the probe with another limit."""
    other = copy(probe)
    other.limit = limit
    return other


def decoded(policy, params, tokens):
    """Returns the log-probabilities by the programs of a sampler, one decode step a token."""
    decoder, held = policy.decoder, policy.for_sampling(params)
    cache = decoder.empty_cache(1, len(tokens))

    @jax.jit
    def step(held, token, t, cache):
        at = t[None, None]
        hidden, cache = decoder.extend(held, token[None, None], at, at * 0 + 1, cache, t)
        return jax.nn.log_softmax(decoder.logits(held, hidden[0, 0])), cache

    found = []
    for t, token in enumerate(tokens[:-1]):
        logprobs, cache = step(held, np.int32(token), np.int32(t), cache)
        found.append(float(logprobs[tokens[t + 1]]))
    return found


def test_the_sequence_is_fixed_and_has_digits(policy, probe):
    text = policy.tokenizer.decode(probe.tokens)
    assert text.startswith("If 38 + 47 = 85, is")
    assert len(probe.tokens) == 32
    assert probe.tokens == Probe(policy, token_logprobs).tokens
    assert all(0 <= token < policy.decoder.config.vocabulary for token in probe.tokens)


@pytest.mark.parametrize(("positions", "length"), [(8, 8), (31, 31), (33, 32)])
def test_the_sequence_fits_the_model(policy, positions, length):
    config = dataclasses.replace(policy.decoder.config, max_positions=positions)
    decoder = dataclasses.replace(policy.decoder, config=config)
    assert len(Probe(dataclasses.replace(policy, decoder=decoder), token_logprobs).tokens) == length


def test_what_is_expected_is_what_numpy_computes(policy, params, probe, numpy_logits):
    logits = numpy_logits(policy.decoder.config, params, probe.tokens)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = logprobs[np.arange(31), probe.tokens[1:]]
    found = probe.expected(params)
    assert (found.dtype, found.shape) == (np.float32, (31,))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_adapters_and_critics_may_be_beside(policy, params):
    decoder = dataclasses.replace(policy.decoder, lora=LoRA(rank=2, targets="up"))
    adapted = dataclasses.replace(policy, decoder=decoder, frozen=params)
    adapters = decoder.lora.init(jax.random.key(0), params)
    expected = Probe(policy, token_logprobs).expected(
        params | {"critic": {"head": params["embedding"]}}
    )
    np.testing.assert_allclose(
        Probe(adapted, token_logprobs).expected(adapters), expected, atol=1e-5
    )
    other = Probe(adapted, token_logprobs).expected(jax.tree.map(lambda x: x + 0.1, adapters))
    assert np.abs(other - expected).max() > 1e-3


@pytest.mark.parametrize("leaf", ["embedding", "norm", "query", "down", "attention_norm"])
def test_each_weight_matters(probe, params, leaf):
    """A server that did not load one of them is caught."""

    def scaled(path, x):
        names = [str(key.key) for key in path]
        return x * 1.01 if leaf in names else x

    expected, found = (probe.expected(x) for x in (params, jax.tree.map_with_path(scaled, params)))
    assert "is above the limit" in str(with_limit(probe, 1e-5).problem(found, expected, None))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_stale_weights_are_caught_after_one_ordinary_step(dtype):
    """One step of Adam changes each weight by the learning rate, of which this is the default."""
    policy, old = Pretrained(path="rl4p/tiny", dtype=dtype).build(Mesh(dp=1), jax.random.key(0))
    probe, signs = Probe(policy, token_logprobs), np.random.default_rng(0)
    new = jax.tree.map(lambda x: x + np.float32(5e-5 * signs.choice([-1, 1], x.shape)), old)
    previous, expected = probe.expected(old), probe.expected(new)
    limit = 1e-3 if dtype == "float32" else 0.25
    stale, right = (decoded(policy, params, probe.tokens) for params in (old, new))
    assert with_limit(probe, limit).problem(right, expected, previous) is None
    assert with_limit(probe, limit).problem(right, expected, None) is None
    assert "it still decodes" in str(with_limit(probe, None).problem(stale, expected, previous))
    assert with_limit(probe, limit).problem(stale, previous, None) is None


def test_weights_that_did_not_change_are_never_stale(policy, params, probe):
    expected = probe.expected(params)
    for previous in (expected, expected.copy(), expected + 1e-7):
        assert with_limit(probe, 1e-3).problem(expected + 1e-5, expected, previous) is None


@pytest.mark.parametrize("size", [1e-3, 0.3, 1, 2, 10])
def test_rounding_is_never_called_stale_and_hides_no_change_of_its_size(probe, size):
    """Tests changes from far below to far above the rounding of an engine, which is 1 here."""
    random = np.random.default_rng(0)
    stale, probe = 0, with_limit(probe, None)
    for _ in range(1000):
        previous, change, rounding = random.normal(0, 1, (3, 31))
        expected = previous + size * change
        assert probe.problem(expected + rounding, expected, previous) is None
        stale += probe.problem(previous + rounding, expected, previous) is not None
    if size >= 2:
        assert stale > 990


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x: x[1:], "it returned 30 log-probabilities of the probe's tokens, not 31"),
        (lambda x: [], "it returned 0 log-probabilities of the probe's tokens, not 31"),
        (lambda x: [*x[:4], None, *x[5:]], "the log-probability of the probe's token 5 is nan"),
        (lambda x: [*x[:30], -np.inf], "the log-probability of the probe's token 31 is -inf"),
        (
            lambda x: [*x[:2], -3.5, *x[3:]],
            "the log-probability of the probe's token 3 is -3.5, but -2 by the new weights: the "
            "gap 1.5 is above the limit 0.1",
        ),
        (lambda x: [-2.05] * 31, None),
        (
            lambda x: [-1.01] * 31,
            "it still decodes with the weights before: the log-probabilities of the probe made 1% "
            "of the change to the new weights, which is 1 for each token",
        ),
    ],
)
def test_a_problem_is_a_sentence_with_its_size(probe, change, sentence):
    expected = np.full(31, -2, np.float32)
    found = with_limit(probe, 0.1).problem(change(list(expected)), expected, expected + 1)
    assert found == sentence


FOUR_DEVICES = """
import jax, numpy as np
from rl4p.distributed.mesh import Mesh
from rl4p.model.pretrained import Pretrained
from rl4p.model.scratch import Scratch
from rl4p.engine.remote.weights import Probe
from rl4p.rollout.remote_sampler import token_logprobs

found = []
for mesh in (Mesh(dp=1), Mesh(dp=2, fsdp=2), Mesh(dp=2, rollout_devices=1)):
    policy, params = Pretrained(path="rl4p/tiny").build(mesh, jax.random.key(0))
    found.append(Probe(policy, token_logprobs).expected(params))
np.testing.assert_allclose(found[1], found[0], atol=1e-4)
np.testing.assert_allclose(found[2], found[0], atol=1e-4)
"""


@pytest.mark.slow
def test_devices_change_nothing(on_devices):
    command = [sys.executable, "-c", FOUR_DEVICES]
    done = subprocess.run(command, capture_output=True, text=True, env=on_devices(4))
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("rounding", "gap", "limit"),
    [
        (None, 9e-3, None),
        (1e-6, 9e-5, None),
        (1e-6, 2e-4, "0.0001, since the largest was 1e-06"),
        (2e-5, 1.9e-3, None),
        (2e-5, 3e-3, "0.002, since the largest was 2e-05"),
        (1e-2, 9e-3, None),
        (1e-2, 2e-2, "0.01"),
    ],
)
def test_the_limit_follows_the_rounding_of_the_first_weights(probe, rounding, gap, limit):
    expected = np.full(31, -2, np.float32)
    found = with_limit(probe, 1e-2).problem(expected + gap, expected, None, rounding)
    if limit is None:
        assert found is None
    else:
        assert f"is above the limit {limit}" in found
    assert with_limit(probe, None).problem(expected + gap, expected, None, rounding) is None


@pytest.mark.quick(1)
@pytest.mark.parametrize("tied", [True, False])
def test_a_head_of_the_weights_before_is_found(tmp_path, tied):
    model = Scratch(width=32, layers=2, heads=4, tied_embedding=tied)
    policy, old = model.build(Mesh(dp=1), jax.random.key(0))
    new = jax.tree.map(lambda x: x + np.float32(0.01) * jnp.sign(x), old)
    probe, folder = Probe(policy, token_logprobs), WeightsFolder(tmp_path)
    before = folder.write(policy, old, "0").path
    expected, name = probe.expected(new), "embedding" if tied else "head"
    untied = dataclasses.replace(policy.decoder.config, tied_embedding=False)
    apart = dataclasses.replace(policy, decoder=dataclasses.replace(policy.decoder, config=untied))
    mixed = token_logprobs(apart, probe.tokens, new | {"head": old[name]})
    assert probe.has_old_head(mixed, new, expected, before)
    assert not probe.has_old_head(expected, new, expected, before)
    assert not probe.has_old_head(probe.expected(old), new, expected, before)


@pytest.mark.quick(1)
@pytest.mark.parametrize("tied", [True, False])
def test_a_tied_embedding_is_written_as_the_head_where_a_server_needs_it(tmp_path, tied):
    model = Scratch(width=32, layers=1, heads=4, tied_embedding=tied)
    policy, params = model.build(Mesh(dp=1), jax.random.key(0))
    weights = WeightsFolder(tmp_path, repeats_head=True).write(policy, params, "0")
    if not tied:
        assert weights.head is None
        return
    assert weights.head is not None
    (name, head), *others = load_file(weights.head / "model.safetensors").items()
    assert (name, others) == ("lm_head.weight", [])
    np.testing.assert_array_equal(head, params["embedding"])
    assert "lm_head.weight" not in weights.checksums
