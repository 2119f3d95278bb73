"""Tests the replacement of a server's weights, and their checksums."""

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from rl4p.base.errors import InputError, RunError
from rl4p.engine.remote.weights import WeightsFolder
from rl4p.engine.serving.scheduler import Scheduler
from rl4p.model.decoder import Decoder
from rl4p.model.lora import LoRA
from rl4p.tools.serving.weights import Sleep, checksums, replacement
from tests.golden.cases import CASES, decoder_config, make_tensors, to_params
from tests.support.scheduler import Client, sequences

FAST = ("qwen2", "gemma3", "qwen3_moe")


def family(policy, case, dtype="float32"):
    """Returns a policy with the decoder of a case, and its parameters."""
    decoder = Decoder(config=decoder_config(case), dtype=dtype)
    params = to_params(decoder.config, make_tensors(decoder.config))
    return dataclasses.replace(policy, decoder=decoder), jax.tree.map(jax.numpy.asarray, params)


def moved(params):
    """Returns parameters that all differ from these."""
    return jax.tree.map(lambda x: jax.device_put(np.asarray(x) * 2 + 1, x.sharding), params)


def export(folder, policy, params, **options):
    return WeightsFolder(folder, **options).write(policy, params, "1")


def assert_equal(ours, theirs):
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for x, y in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_array_equal(x, y, strict=True)
        assert x.sharding == y.sharding


@pytest.mark.quick(1)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=[] if case in FAST else pytest.mark.slow) for case in CASES],
)
def test_a_server_holds_what_the_trainer_wrote(policy, tmp_path, case, dtype):
    policy, old = family(policy, case, dtype)
    new = moved(old)
    exported = export(tmp_path, policy, new, shard_bytes=20_000)
    held = policy.for_sampling(old)
    before = checksums(policy, held)
    assert before.keys() == exported.checksums.keys()
    assert not [name for name, x in before.items() if exported.checksums[name] == x]
    held = replacement(exported.path, policy)(held)
    assert_equal(held, policy.for_sampling(new))
    assert checksums(policy, held) == exported.checksums


def test_the_parameters_of_the_trainer_do_not_change(policy, tmp_path):
    """Parameters in sampling form share arrays with them, and the tree of the last norm."""
    policy, params = family(policy, "qwen2")
    before = jax.tree.map(np.array, params)
    replacement(export(tmp_path, policy, moved(params)).path, policy)(policy.for_sampling(params))
    jax.tree.map(np.testing.assert_array_equal, params, before)


def test_a_server_in_half_precision_rounds(policy, tmp_path):
    whole, params = family(policy, "qwen2")
    half, _ = family(policy, "qwen2", "bfloat16")
    exported = export(tmp_path, whole, params)
    held = replacement(exported.path, half)(half.for_sampling(moved(params)))
    assert_equal(held, half.for_sampling(params))


@pytest.fixture
def server(policy, params, tmp_path):
    """Returns a policy, its parameters in sampling form, and a folder of others."""
    return policy, policy.for_sampling(params), export(tmp_path, policy, moved(params)).path


def rewritten(folder, change):
    """Changes the tensors of a folder and returns it."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def keep_only(*names):
    def change(tensors):
        for name in tensors.keys() - set(names):
            del tensors[name]

    return change


def test_a_part_of_the_tensors_leaves_the_others(server, params):
    policy, held, folder = server
    names = {"model.norm.weight", "model.layers.1.mlp.up_proj.weight"}
    (folder / "config.json").unlink()
    before = checksums(policy, held)
    held = replacement(rewritten(folder, keep_only(*names)), policy)(held)
    after = checksums(policy, held)
    assert {name for name in before if before[name] != after[name]} == names
    up = params["layers"]["up"]["kernel"]
    np.testing.assert_array_equal(held["layers"][1]["up"]["kernel"], up[1] * 2 + 1)
    np.testing.assert_array_equal(held["layers"][0]["up"]["kernel"], up[0])


def test_some_experts_leave_the_others(policy, tmp_path):
    policy, params = family(policy, "qwen3_moe")
    folder = export(tmp_path, policy, moved(params)).path
    names = {f"model.layers.2.mlp.experts.{i}.down_proj.weight" for i in (0, 4)}
    held = policy.for_sampling(params)
    before = checksums(policy, held)
    held = replacement(rewritten(folder, keep_only(*names)), policy)(held)
    after = checksums(policy, held)
    assert {name for name in before if before[name] != after[name]} == names
    down = params["layers"]["experts"]["down"][2]
    found = held["layers"][2]["experts"]["down"]
    for expert in range(6):
        expected = down[expert] * 2 + 1 if expert in (0, 4) else down[expert]
        np.testing.assert_array_equal(found[expert], expected)


def test_merged_weights_take_the_place_of_adapters(policy, params, tmp_path):
    decoder = dataclasses.replace(policy.decoder, lora=LoRA(rank=2, targets="up"))
    adapted = dataclasses.replace(policy, decoder=decoder, frozen=params)
    adapters = jax.tree.map(lambda x: x + 1, decoder.lora.init(jax.random.key(0), params))
    exported = export(tmp_path, adapted, adapters)
    # Adapters of the server would change the new weights if they were added to them.
    held = adapted.for_sampling(jax.tree.map(lambda x: x * 0 + 3, adapters))
    assert any(np.any(layer["up"]["lora_b"]) for layer in held["layers"])
    held = replacement(exported.path, adapted)(held)
    assert checksums(adapted, held) == exported.checksums
    kernel = held["layers"][0]["up"]["kernel"]
    assert not np.array_equal(kernel, params["layers"]["up"]["kernel"][0])
    assert checksums(adapted, adapted.merged(adapters)) == exported.checksums


def test_checksums_are_of_the_files(server):
    policy, held, folder = server
    held = replacement(folder, policy)(held)
    assert checksums(policy, held, "sha256") == {
        name: hashlib.sha256(x.tobytes()).hexdigest()
        for name, x in load_file(folder / "model.safetensors").items()
    }


def cut(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def edit_config(**keys):
    def edit(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | keys))

    return edit


def tensors(**changes):
    return lambda folder: rewritten(folder, lambda found: found.update(changes))


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (cut, "is not a complete safetensors file"),
        (lambda folder: (folder / "model.safetensors").unlink(), "must be a folder with model"),
        (lambda folder: rewritten(folder, dict.clear), "has no tensors"),
        (lambda folder: (folder / "config.json").write_text("{"), "is not JSON"),
        (edit_config(rope_theta=7.0), "is of another model: rope_theta is 7.0, not 10000.0"),
        (edit_config(num_hidden_layers=3), "is of another model: layers is 3, not 2"),
        (tensors(a=np.zeros(2, np.float32)), "do not match the model: a is not part of this model"),
        (
            tensors(**{"model.norm.weight": np.zeros(31, np.float32)}),
            r"norm.weight must have shape \(32,\), not \(31,\)",
        ),
        (
            tensors(**{"model.norm.weight": np.zeros(32, np.int8)}),
            r"are quantized \(model.norm.weight is I8\)",
        ),
    ],
)
def test_a_folder_that_does_not_fit_is_refused_before_anything_changes(server, spoil, sentence):
    policy, _, folder = server
    spoil(folder)
    with pytest.raises(InputError, match=sentence):
        replacement(folder, policy)


NO_WEIGHTS = r"cannot be used: it must be a folder with model\.safetensors"


@pytest.mark.parametrize(
    "kind", ["absent", "empty", "pickle", "long", "link", "linked config", "linked shard", "fifo"]
)
def test_no_error_says_what_is_in_a_folder_without_weights(server, tmp_path, kind, caplog):
    policy, _, weights = server
    folder = tmp_path / ("x" * 3000 if kind == "long" else "folder")
    if kind not in ("absent", "long"):
        folder.mkdir()
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    if kind == "pickle":
        (folder / "salaries.bin").write_bytes(b"")
    elif kind == "fifo":
        os.mkfifo(folder / "model.safetensors")
    elif kind in ("link", "linked shard"):
        (folder / "model.safetensors").symlink_to(secret)
    elif kind == "linked config":
        shutil.copy(weights / "model.safetensors", folder)
        (folder / "config.json").symlink_to(secret)
    if kind == "linked shard":
        index = json.dumps({"weight_map": {"a": "model.safetensors"}})
        (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(InputError, match=NO_WEIGHTS) as error:
        replacement(folder, policy)
    assert "salaries" not in str(error.value)
    assert "secret" not in str(error.value)
    assert all(len(message) < 1000 for message in caplog.messages)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_configuration_that_is_no_file_is_refused(server, tmp_path, make):
    policy, _, weights = server
    shutil.copy(weights / "model.safetensors", tmp_path)
    make(tmp_path / "config.json")
    with pytest.raises(InputError, match=r"config\.json is not a regular file"):
        replacement(tmp_path, policy)


def test_files_that_cannot_be_opened_change_nothing(server, monkeypatch):
    policy, _, folder = server
    opening = Path.open

    def fail(path, mode="r", buffering=-1):
        if buffering == 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return opening(path, mode, buffering)

    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(InputError, match="which the server can read"):
        replacement(folder, policy)


def test_a_folder_that_is_deleted_meanwhile_is_read_to_the_end(server, params):
    policy, held, folder = server
    load = replacement(folder, policy)
    shutil.rmtree(folder)
    assert_equal(load(held), policy.for_sampling(moved(params)))


def test_a_file_that_becomes_shorter_is_an_error_and_not_an_input(server):
    policy, held, folder = server
    load = replacement(folder, policy)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(RunError, match=r"are now partly old and partly new: .* became shorter"):
        load(held)


def test_what_failed_can_be_repeated(server, params, tmp_path):
    policy, held, folder = server
    load = replacement(folder, policy)
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[:-2000])
    with pytest.raises(RunError):
        load(held)
    (folder / "model.safetensors").write_bytes(content)
    assert_equal(replacement(folder, policy)(held), policy.for_sampling(moved(params)))


# Four devices: attention heads, the vocabulary and experts' hidden units are divided between two.
FOUR_DEVICES = """
import dataclasses, sys, jax, numpy as np
from pathlib import Path
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.placement import param_shardings
from rl4p.distributed.processes import place
from rl4p.model.scratch import Scratch
from rl4p.model.decoder import Decoder
from rl4p.engine.remote.weights import WeightsFolder
from rl4p.tools.serving.weights import checksums, replacement
from tests.golden.cases import decoder_config, make_tensors, to_params
from safetensors.numpy import load_file, save_file

for case in ("gemma2", "phi3", "gpt_oss", "qwen3_moe"):
    mesh = Mesh(dp=1, fsdp=2, tp=2)
    policy = Scratch(width=32, heads=4, num_kv_heads=2).policy(mesh)
    policy = dataclasses.replace(policy, decoder=Decoder(config=decoder_config(case)))
    params = to_params(policy.decoder.config, make_tensors(policy.decoder.config))
    divided = place(params, param_shardings(mesh, params))
    weights = WeightsFolder(Path(sys.argv[1]))
    exported = weights.write(policy, divided, "1")
    held = policy.for_sampling(jax.tree.map(lambda x: x * 0, divided))
    where = jax.tree.map(lambda x: x.sharding, held)
    held = replacement(exported.path, policy)(held)
    assert checksums(policy, held) == exported.checksums
    assert jax.tree.all(jax.tree.map(lambda x, y: x.sharding == y, held, where))
    expected = policy.for_sampling(divided)
    jax.tree.map(np.testing.assert_array_equal, held, expected)
    assert held["embedding"].addressable_shards[0].data.size * 2 == held["embedding"].size

file = exported.path / "model.safetensors"
tensors, name = load_file(file), "model.layers.0.mlp.experts.3.up_proj.weight"
save_file({name: tensors[name] * 0 + 5}, file)
held = replacement(exported.path, policy)(held)
up = np.array(expected["layers"][0]["experts"]["up"])
up[3] = 5
np.testing.assert_array_equal(held["layers"][0]["experts"]["up"], up)
assert held["layers"][0]["experts"]["up"].sharding == where["layers"][0]["experts"]["up"]
weights.close()
"""


@pytest.mark.slow
def test_each_device_gets_its_part(tmp_path, on_devices):
    command = [sys.executable, "-c", FOUR_DEVICES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=on_devices(4))
    assert done.returncode == 0, done.stderr[-3000:]


# A model of 260 MB. The first load replaces arrays that the sampler's program made, and the second
# those that the first one read.
MEMORY = """
import gc, sys, jax
from pathlib import Path
from rl4p.distributed.mesh import Mesh
from rl4p.model.pretrained import Pretrained
from rl4p.model.scratch import Scratch
from rl4p.engine.remote.weights import WeightsFolder
from rl4p.tools.serving.weights import replacement

def memory():
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return int(found["VmRSS"]) * 1024, int(found["VmHWM"]) * 1024

def growth(call):
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before, result = memory()[0], call()
    return (memory()[1] - before) / size, result

model = Scratch(width=512, layers=16, heads=8, feed_forward_width=2048, vocabulary=16_000)
policy, params = model.build(Mesh(dp=1), jax.random.key(0))
size = sum(x.nbytes for x in jax.tree.leaves(params))
weights = WeightsFolder(Path(sys.argv[1]), shard_bytes=2**25)
weights.write(policy, params, "compiles")
params = jax.block_until_ready(jax.tree.map(lambda x: x + 1, params))
written, exported = growth(lambda: weights.write(policy, params, "1"))
assert written < 0.2, written
del params
policy, params = Pretrained(path=str(exported.path)).build(Mesh(dp=1), jax.random.key(0))
held = policy.for_sampling(params)
del params
for _ in range(2):
    loaded, held = growth(lambda: replacement(exported.path, policy)(held))
    assert loaded < 0.5, loaded  # 0.7 if nothing is released
weights.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_the_host_holds_little_more_than_the_model(tmp_path):
    command = [sys.executable, "-c", MEMORY, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture
def scheduler(policy, params):
    copy = jax.tree.map(np.array, jax.device_get(params))
    with closing(Scheduler(policy, jax.device_put(copy), "first", slots=4)) as scheduler:
        yield scheduler


def drawn(scheduler):
    client = Client()
    scheduler.submit(sequences(), client.deliver, client.fail)
    return client.wait().result().tokens


def device_bytes(scheduler):
    """The bytes of arrays of the scheduler."""
    leaves = jax.tree.leaves((scheduler.params, scheduler.batch.cache))
    return sum(leaf.nbytes for leaf in leaves)


@pytest.mark.parametrize("keep", [True, False])
def test_a_server_that_sleeps_holds_neither_weights_nor_cache(scheduler, keep):
    before, weights = drawn(scheduler), scheduler.params
    leaves = jax.tree.leaves(weights)
    lease, sleep = scheduler.pause("abort", 10), Sleep(scheduler)
    sleep.begin(keep=keep)
    assert device_bytes(scheduler) == 0
    assert (sleep.weights is not None) == keep
    sleep.end()
    assert jax.tree.structure(scheduler.params) == jax.tree.structure(weights)
    for old, new in zip(leaves, jax.tree.leaves(scheduler.params), strict=True):
        assert (old.shape, old.dtype, old.sharding) == (new.shape, new.dtype, new.sharding)
        np.testing.assert_array_equal(new, old if keep else np.zeros_like(old))
    scheduler.resume(lease)
    if not keep:
        with pytest.raises(RunError, match="load weights first"):
            drawn(scheduler)
        scheduler.replace(lambda _: weights, "second", recompute=True)
    assert drawn(scheduler) == before
