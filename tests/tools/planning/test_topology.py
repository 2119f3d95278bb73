"""Tests the descriptions of NVIDIA GPUs, and plans for them on a machine without them.

`make gpu-plan` compiles the plans, with its own plugin of JAX on the path; without it they fail.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
from dataclasses import fields
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.experimental import topologies

from experiments.memory import folder_of
from rl4p.base.errors import InputError
from rl4p.configuration.slices import CHIPS, GIB
from rl4p.distributed.mesh import Mesh
from rl4p.tools.planning import topology
from rl4p.tools.planning.topology import (
    ALONE,
    DescribedMesh,
    described,
    estimated,
    memory_of,
    planned,
    reports_memory,
    target_of,
)

STEP = (
    *("model=pretrained", "model.dtype=bfloat16", "model.remat=layer", "tracker=none"),
    *("prompts_per_step=8", "group_size=8", "max_prompt_tokens=256", "max_response_tokens=512"),
)
LORA = ("model.lora.rank=16", "model.param_dtype=bfloat16")


def test_every_gpu_has_a_description():
    for name, chip in CHIPS.items():
        if chip.platform == "gpu":
            text = target_of(name)
            assert f"memory_bandwidth: {chip.bandwidth:.0f}" in text
            assert f'device_description_str: "{chip.kind}"' in text
    assert "shared_memory_per_block_optin: 232448" in target_of("h100")  # 227 KiB
    assert "major: 8 minor: 9" in target_of("l4")


@pytest.mark.gpu_plan
@pytest.mark.parametrize(
    ("name", "mesh", "words", "at_most"),
    [
        ("Qwen2.5-1.5B", "h100_1", (), 40),
        ("Qwen2.5-7B", "h100_1", LORA, 40),
        ("Qwen2.5-7B", "h100_8", (), 40),
        ("Qwen2.5-0.5B", "rtx4090_1", LORA, 16),
        ("Qwen2.5-0.5B", "a100_1", (), 16),
    ],
)
def test_gpus_are_planned_for_without_having_them(plan, tmp_path, name, mesh, words, at_most):
    folder = folder_of(name, tmp_path)
    words = (*STEP, f"model.path={folder}", f"mesh={mesh}", *words)
    done = plan(*words, f"hydra.run.dir={tmp_path / 'plan'}", small=())
    assert done.returncode == 0, done.stderr[-3000:]
    written = json.loads((tmp_path / "plan" / "plan.json").read_text())
    assert written["fits"]
    assert written["chip"].startswith("NVIDIA")
    assert math.prod(written["mesh"].values()) == int(mesh.rpartition("_")[2])
    phases = {each["phase"]: each for each in written["phases"]}
    assert list(phases) == ["weights", "prefill", "arrange", "decode", "update"]
    for each in phases.values():
        assert 0 < each["total"] <= at_most * 2**30
    assert phases["decode"]["seconds_at_least"] > 0
    assert phases["update"]["seconds_at_least"] > 0
    estimate = plan(*words, "estimate=true", f"hydra.run.dir={tmp_path / 'estimate'}", small=())
    assert estimate.returncode == 0, estimate.stderr[-3000:]
    guess = json.loads((tmp_path / "estimate" / "plan.json").read_text())["phases"]
    for phase, parts in guess.items():
        compiled = max(phases["update" if phase == "update" else "decode"]["total"], 1)
        assert sum(parts.values()) == pytest.approx(compiled, rel=0.3), phase


DRAWING = r"""
import re
import jax
import jax.numpy as jnp
from rl4p.tools.planning.topology import described
from rl4p.model.sampling import draw
from rl4p.base.types import Sampling

place = jax.sharding.SingleDeviceSharding(described("h100:1")[0])
arguments = ((64, 151_936), "float32"), ((64, 2), "uint32"), ((64,), "int32"), ((), bool)
shapes = [jax.ShapeDtypeStruct(*argument, sharding=place) for argument in arguments]

def drawn(logits, keys, t, greedy):
    return draw(logits, Sampling(), jax.random.wrap_key_data(keys), t, greedy)

text = jax.jit(drawn).trace(*shapes).lower().compile().as_text()
text = text[text.index("ENTRY") :]
(logits,) = re.findall(r"(%\S+) = f32\[64,151936\]\S* parameter\(0\)", text)
reductions = re.findall(rf"fusion\({re.escape(logits)}[,)].*kind=kInput", text)
assert len(reductions) == 3, text
assert text.count(" = f32[64,151936]") == 1, text
"""


@pytest.mark.gpu_plan
def test_a_gpu_reads_all_logits_three_times_to_draw_from_them():
    """For the largest, the sums, and the greedy token; no other array of their size is written."""
    done = subprocess.run([sys.executable, "-c", DRAWING], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_mesh_of_what_is_here_is_planned_for_as_it_is():
    mesh = Mesh(dp=1)
    assert planned(mesh) is mesh


def test_a_slice_is_the_same_mesh_of_chips_that_are_not_here():
    mesh = Mesh(dp=2, fsdp=4, tp=2, topology="v5e:4x4", rollout_devices=4)
    found = planned(mesh)
    assert isinstance(found, DescribedMesh)
    for field in fields(Mesh):
        assert getattr(found, field.name) == getattr(mesh, field.name), field.name


def test_a_described_mesh_takes_the_chips_of_its_slice(monkeypatch):
    monkeypatch.setattr(topology, "described", lambda name: [name, "chips"])
    assert planned(Mesh(topology="v5e:4x4")).available == ["v5e:4x4", "chips"]


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("v5e:4x4", "libtpu", "plan"), ("h100:8", "jax_cuda12_plugin", "plan-cuda")],
)
def test_without_its_compiler_the_sentence_says_how_to_install_it(
    monkeypatch, name, package, extra
):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError) as caught:
        described(name)
    assert str(caught.value) == (
        f"mesh.topology={name} needs {package}, which is not installed: pip install "
        f"'rl4p[{extra}]', or add estimate=true."
    )


@pytest.mark.parametrize(
    ("name", "wiring"), [("h100:1", "1x1x1"), ("rtx4090:4", "1x1x4"), ("h100:16", "1x2x8")]
)
def test_gpus_are_described_by_host_and_by_their_own_figures(monkeypatch, name, wiring):
    asked = []

    def describe(**options):
        asked.append(options)
        return SimpleNamespace(devices=("a chip",))

    monkeypatch.setenv("XLA_FLAGS", "--own=1")  # restored after the test
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "jax_cuda12_plugin")
    monkeypatch.setattr(topologies, "get_topology_desc", describe)
    monkeypatch.setattr(jax.config, "update", lambda *words: None)
    assert described(name) == ["a chip"]
    assert (asked[0]["platform"], asked[0]["topology"]) == ("cuda", wiring)
    assert described(name) == ["a chip"]
    assert os.environ["XLA_FLAGS"] == "--own=1 --xla_gpu_enable_triton_gemm=false"
    mesh = planned(Mesh(topology=name))
    assert mesh.platform == "gpu"


@pytest.fixture
def libtpu(monkeypatch):
    """Replaces libtpu; records requests, environment variables and JAX's platforms."""
    asked = SimpleNamespace(calls=[], settings=[], error=None)

    def describe(**options):
        asked.calls.append(options | {name: os.environ.get(name) for name in ALONE})
        if asked.error is not None:
            raise asked.error
        return SimpleNamespace(devices=("a chip", "another"))

    for name in ALONE:  # monkeypatch then restores the values that the test sets
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "libtpu")
    monkeypatch.setattr(topologies, "get_topology_desc", describe)
    monkeypatch.setattr(jax.config, "update", lambda *words: asked.settings.append(words))
    return asked


@pytest.mark.parametrize(
    ("name", "asked"), [("v5e:4x4", "v5e:4x4"), ("v5p:2x2x2", "v5:2x2x2"), ("v6e:2x4", "v6e:2x4")]
)
def test_libtpu_is_told_that_it_is_alone_before_it_is_asked(libtpu, name, asked):
    assert described(name) == ["a chip", "another"]
    assert libtpu.calls == [{"platform": "tpu", "topology_name": asked} | ALONE]


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("v5e:1x1", {"chips_per_host_bounds": [1, 1, 1]}),
        ("v4:2x2x1", {"chip_config_name": "megacore"}),
    ],
)
def test_one_chip_and_the_chips_of_v4_need_more_words(libtpu, name, more):
    described(name)
    assert libtpu.calls == [{"platform": "tpu", "topology_name": name} | more | ALONE]


def test_what_the_environment_says_already_stays(libtpu, monkeypatch):
    monkeypatch.setenv("TPU_WORKER_ID", "3")
    described("v5e:4x4")
    assert libtpu.calls[0]["TPU_WORKER_ID"] == "3"


def test_jax_looks_for_no_tpu_unless_it_is_told_to(libtpu, monkeypatch):
    described("v5e:4x4")
    assert libtpu.settings == []  # tests set JAX_PLATFORMS
    monkeypatch.delenv("JAX_PLATFORMS")
    described("v5e:4x4")
    assert libtpu.settings == [("jax_platforms", "cpu")]


@pytest.mark.parametrize("kind", [RuntimeError, ValueError, NotImplementedError])
def test_a_wiring_that_libtpu_does_not_know_is_one_sentence(libtpu, kind):
    libtpu.error = kind("no\n  such slice")
    with pytest.raises(InputError) as caught:
        described("v5e:3x7")
    assert str(caught.value) == "libtpu does not know mesh.topology=v5e:3x7: no such slice"


def mesh_of(kind, platform="tpu", stats=None, *, described=False):
    """Returns a mesh of two devices."""
    device = SimpleNamespace(device_kind=kind, platform=platform, memory_stats=lambda: stats)
    devices = SimpleNamespace(devices=np.array([device, device], object), size=2)
    if not described:
        return SimpleNamespace(devices=devices, size=2)
    mesh = DescribedMesh(topology="v5e:1x2")
    mesh.__dict__["devices"] = devices
    return mesh


def test_memory_is_what_programs_may_use_of_chips_that_are_not_here():
    chip, memory = memory_of(mesh_of("TPU v5 lite", stats={"bytes_limit": 7}, described=True))
    assert (chip.kind, memory) == ("TPU v5 lite", 15.75 * GIB)


def test_of_a_gpu_that_is_not_here_jax_takes_its_share(monkeypatch):
    monkeypatch.delenv("XLA_PYTHON_CLIENT_MEM_FRACTION", raising=False)
    _, memory = memory_of(mesh_of("NVIDIA H100 80GB HBM3", described=True))
    assert memory == 0.75 * 80e9


def test_memory_is_what_the_devices_report_where_they_do():
    chip, memory = memory_of(mesh_of("TPU v6 lite", stats={"bytes_limit": 7}))
    assert (chip.kind, memory) == ("TPU v6 lite", 7)
    assert memory_of(mesh_of("TPU v6 lite", stats={"other": 1}))[1] == 31.25 * GIB
    assert memory_of(mesh_of("TPU v6 lite"))[1] == 31.25 * GIB


def test_devices_of_a_cpu_share_its_memory(monkeypatch):
    pages = {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 1000}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__)
    chip, memory = memory_of(mesh_of("cpu", "cpu"))
    assert (chip.platform, chip.kind, memory) == ("cpu", "cpu", 4096 * 1000 / 2)


def test_of_a_chip_that_nobody_knows_nothing_is_known():
    chip, memory = memory_of(mesh_of("TPU v99"))
    assert (chip.kind, chip.flops, memory) == ("TPU v99", 0, 0)


@pytest.mark.parametrize(
    ("stats", "reports"), [(None, False), ({}, False), ({"bytes_limit": 0}, True)]
)
def test_devices_report_memory_by_its_limit(stats, reports):
    assert reports_memory(mesh_of("cpu", "cpu", stats)) is reports


@pytest.mark.parametrize(
    ("options", "shape", "sampling"),
    [
        ({"topology": "h100:8", "fsdp": "host"}, {"dp": 1, "fsdp": 8, "tp": 1}, None),
        ({"topology": "h100:16", "dp": 2, "fsdp": 8}, {"dp": 2, "fsdp": 8, "tp": 1}, None),
        (
            {"topology": "tpu7x:2x2x2", "dp": 1, "fsdp": -1, "tp": 2, "rollout_devices": 4},
            {"dp": 1, "fsdp": 6, "tp": 2},
            {"dp": 2, "fsdp": 1, "tp": 2},
        ),
        (
            {"topology": "v6e:8", "dp": 1, "fsdp": -1, "sampling_tp": 4},
            {"dp": 1, "fsdp": 8, "tp": 1},
            {"dp": 2, "fsdp": 2, "tp": 2},
        ),
    ],
)
def test_a_mesh_to_estimate_for_has_the_axes_of_its_slice_and_no_devices(options, shape, sampling):
    mesh = estimated(Mesh(**options))
    assert dict(mesh.devices.shape) == shape
    assert mesh.size == np.prod(list(shape.values()))
    other = mesh.sampling_mesh(8, 2)  # query and KV heads
    assert (other is mesh) == (sampling is None)
    assert dict(other.devices.shape) == (sampling or shape)
    assert other.product_axes == (("tp", "fsdp") if sampling else ("tp",))
    assert mesh.platform == ("tpu" if sampling else "gpu")


def test_devices_that_are_here_are_estimated_for_as_they_are():
    mesh = Mesh(dp=1)
    assert estimated(mesh) is mesh
