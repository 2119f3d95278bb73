"""Tests training with arrays in the memory of the host, which JAX has on a CPU too.

Tests that the memory of devices is what they report, and that nothing is invented.
"""

import ctypes
import subprocess
import sys
import weakref
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rl4p
from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.distributed import placement
from rl4p.distributed.placement import (
    GIB,
    as_before,
    device_memory,
    is_offloaded,
    offloaded,
    on_device,
)
from rl4p.learner import gradient_step
from rl4p.learner.gradient_step import forward_backward
from rl4p.loop import loop
from rl4p.loop.loop import train
from rl4p.runs import build as module
from rl4p.runs.build import build
from rl4p.runs.checkpoint import as_saved

SMALL = (
    *("model=scratch", "model.width=32", "model.layers=2", "model.heads=2"),
    *("model.num_kv_heads=2", "mesh=single"),
    *("data.train_size=20", "data.held_out_size=4", "prompts_per_step=4", "group_size=4"),
    *("max_response_tokens=8", "steps=3", "evaluation.every=0", "tracker=none"),
    *("optimizer.learning_rate=0.01", "+reward.terms.capital._target_=rl4p.reward.form.Format"),
    "+reward.terms.capital.pattern='.*[A-Z].*'",
)
OFFLOADED = ("optimizer.offload=true",)
pytestmark = pytest.mark.mixed_dtypes  # of optax


@pytest.fixture
def on_a_cpu(monkeypatch):
    """Keeps arrays in the memory of the host, which a run on a CPU refuses."""
    monkeypatch.setattr(module, "refuse_offloading_on_a_cpu", lambda *_: None)


def trained(*words):
    """Returns the experiment, its last state, and the metrics of its steps."""
    experiment = build(compose([*SMALL, *words]))
    steps = list(train(experiment.loop, experiment.state))
    assert all(step.metrics["update/grad_norm"] > 0 for step in steps)
    return experiment, steps[-1].state, [step.metrics for step in steps]


def assert_equal(one, other):
    """Checks parameters and moments up to the order of sums, which two programs choose."""
    for tree, again in zip(*((x.params, x.optimizer_state) for x in (one, other)), strict=True):
        a, b = (
            np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(x))])
            for x in (tree, again)
        )
        assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(a)


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize(
    "words",
    [
        (),
        pytest.param(("update.minibatches=2", "update.epochs=2"), marks=pytest.mark.slow),
        pytest.param(("optimizer=muon",), marks=pytest.mark.slow),
        pytest.param(("optimizer=sgd",), marks=pytest.mark.slow),
    ],
    ids=lambda words: " ".join(words) or "adamw",
)
def test_an_update_is_the_same_with_the_moments_in_the_host(words, monkeypatch):
    _, plain, metrics = trained(*words)
    # Its program would hold the moments beside the activations.
    monkeypatch.setattr(loop, "gradient_step", pytest.fail)
    _, state, again = trained(*words, *OFFLOADED)
    assert all(map(is_offloaded, jax.tree.leaves(state.optimizer_state)))
    assert not any(map(is_offloaded, jax.tree.leaves(state.params)))
    assert_equal(plain, state)
    for one, other in zip(metrics, again, strict=True):
        assert one["update/grad_norm"] == pytest.approx(other["update/grad_norm"], rel=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_cpu")
def test_no_gradient_stays_until_the_next_one(monkeypatch):
    former = []

    def watched(*arguments):
        assert all(gradient() is None for gradient in former)
        gradient = forward_backward(*arguments)
        former.extend(map(weakref.ref, jax.tree.leaves(gradient.params)))
        return gradient

    monkeypatch.setattr(gradient_step, "forward_backward", watched)
    trained("update.minibatches=2", *OFFLOADED)
    assert len(former) > 3


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_cpu")
def test_a_gradient_that_is_not_finite_leaves_the_moments():
    experiment, state, _ = trained(*OFFLOADED)
    before = jax.device_get(as_saved(state))
    broken = jax.tree.map(lambda x: x * np.nan, state.params)
    longer = replace(experiment.loop, steps=4)
    (step,) = train(longer, replace(state, params=broken))
    assert step.metrics["update/skipped"] == 1
    jax.tree.map(
        np.testing.assert_array_equal,
        jax.device_get(step.state.optimizer_state),
        before["optimizer_state"],
    )


@pytest.mark.quick(1)
@pytest.mark.usefixtures("on_a_cpu")
@pytest.mark.parametrize("reset", [0, 2])
def test_scores_are_the_same_with_the_reference_in_the_host(reset):
    words = ("kl=fixed", "kl.beta=0.5", f"reference.reset_every={reset}")
    _, plain, metrics = trained(*words)
    experiment, state, again = trained(*words, "reference.offload=true")
    reference = state.reference if reset else experiment.loop.scoring.reference[1]
    assert all(map(is_offloaded, jax.tree.leaves(reference)))
    assert_equal(plain, state)
    assert metrics[1]["update/kl"] == pytest.approx(again[1]["update/kl"], rel=1e-5)
    assert metrics[1]["update/kl"] > 0  # of the first policy; after a reset it is 0 again


@pytest.mark.slow
@pytest.mark.usefixtures("on_a_cpu")
def test_a_run_with_moments_in_the_host_resumes_exactly(tmp_path):
    words = (*SMALL, *OFFLOADED, "kl=fixed", "reference.offload=true", "checkpoint.every=1")
    whole = rl4p.train([*words, f"hydra.run.dir={tmp_path / 'whole'}"])
    half = tmp_path / "half"
    rl4p.train([*words, "steps=2", f"hydra.run.dir={half}"])
    resumed = rl4p.train([f"resume={half}", "steps=3"])
    assert resumed.summary()["params_sha256"] == whole.summary()["params_sha256"]


@pytest.mark.usefixtures("on_a_cpu")
def test_adapters_share_the_reference():
    words = ("model=tiny", "model.lora.rank=2", "kl=fixed", "reference.offload=true")
    with pytest.raises(InputError, match="has no effect with adapters, because the reference is"):
        build(compose([*SMALL[6:], *words]))


def test_what_is_on_the_devices_stays_there():
    x = jnp.ones(2)
    host = offloaded(x)
    assert on_device(x) is x
    assert not is_offloaded(on_device(host))
    assert is_offloaded(as_before(x, host))
    assert as_before(x, x) is x


SEVERAL = """
import sys, jax, numpy as np
from rl4p.runs import build as module
module.refuse_offloading_on_a_cpu = lambda *_: None
from tests.distributed.test_placement import OFFLOADED, assert_equal, trained
mesh = ("mesh.dp=2", "mesh.fsdp=2", "mesh.tp=2")
_, plain, _ = trained(*mesh)
_, state, _ = trained(*mesh, *OFFLOADED)
assert_equal(plain, state)
pairs = zip(*(jax.tree.leaves(x.optimizer_state) for x in (plain, state)), strict=True)
assert all(one.sharding.spec == other.sharding.spec for one, other in pairs)
"""


@pytest.mark.slow
def test_several_devices_keep_their_own_parts_in_the_host(on_devices):
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL], env=on_devices(8), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


SEVERAL = """
import jax, jax.numpy as jnp, numpy as np
from rl4p.distributed import placement
from rl4p.distributed.mesh import Mesh

def parts(x):
    return [shard.data.shape for shard in x.addressable_shards]

mesh = Mesh(dp=2, fsdp=2, tp=2)

# A parameter is divided along its axes.
random = np.random.default_rng(0)
params = {
    "embedding": random.normal(size=(4, 8)).astype(np.float32),
    "norm": {"scale": random.normal(size=8).astype(np.float32)},
}
sharded = jax.device_put(params, placement.param_shardings(mesh, params))
assert parts(sharded["embedding"]) == [(2, 4)] * 8 and parts(sharded["norm"]["scale"]) == [(8,)] * 8

# What an optimizer keeps lies beside its parameter.
state = placement.init_beside(mesh, lambda p: {"mu": jax.tree.map(jnp.zeros_like, p)}, sharded)
assert parts(state["mu"]["embedding"]) == [(2, 4)] * 8

# New parameters have the shardings that `shapes` says.
def init(key):
    return {"embedding": jax.random.normal(key, (4, 8))}

fresh = placement.init(mesh, init, jax.random.key(0))
assert parts(fresh["embedding"]) == [(2, 4)] * 8
said = placement.shapes(mesh, init, jax.random.key(0))["embedding"]
assert (said.shape, said.sharding) == ((4, 8), fresh["embedding"].sharding)

# An update returns its results in these shardings, whatever those of its arguments.
def update(params, state):
    return placement.constrain(mesh, jax.tree.map(lambda x: x + 1, params), state)

kept = jax.jit(update)(*mesh.replicate((sharded, state)))
assert parts(kept[0]["embedding"]) == parts(kept[1]["mu"]["embedding"]) == [(2, 4)] * 8

# A sampler's parameters are divided along tp alone.
layers = {"layers": {"up": {"kernel": np.ones((2, 8, 4), np.float32)}}}
for on in (mesh, Mesh(dp=1, fsdp=2, tp=2, rollout_devices=4)):
    both = jax.device_put(params | layers, placement.param_shardings(on, params | layers))
    given = placement.for_sampling(on.sampling_mesh(24, 4), both, "float32")
    assert set(parts(given["embedding"])) == {(2, 8)}
    assert len(given["layers"]) == 2
    assert set(parts(given["layers"][0]["up"]["kernel"])) == {(8, 2)}
    there = set(on.sampling_mesh(24, 4).devices.devices.flat)
    assert given["embedding"].sharding.device_set == there
"""


@pytest.mark.slow
def test_several_devices_divide_parameters(on_devices):
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL], env=on_devices(8), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def devices(*stats):
    return lambda: [SimpleNamespace(memory_stats=lambda each=each: each) for each in stats]


@pytest.mark.parametrize(
    ("stats", "memory"),
    [
        ([{"bytes_in_use": GIB, "peak_bytes_in_use": 4 * GIB},
          {"bytes_in_use": 2 * GIB, "peak_bytes_in_use": 3 * GIB}],
         {"memory/used_gib": 2.0, "memory/peak_gib": 4.0}),
        ([{"bytes_in_use": GIB}], {"memory/used_gib": 1.0}),
        ([{"bytes_in_use": GIB}, None], {}),
        ([None], {}),
    ],
)  # fmt: skip
def test_the_fullest_device_counts_and_only_what_all_report(monkeypatch, stats, memory):
    monkeypatch.setattr(jax, "local_devices", devices(*stats))
    assert device_memory() == memory


def test_a_cpu_reports_none():
    assert jax.local_devices()[0].platform == "cpu"
    assert device_memory() == {}


def resident_bytes():
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in x)
    return int(line.split()[1]) * 1024


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="without glibc")
@pytest.mark.parametrize(("least", "returned"), [(0.0, True), (1000.0, False)])
def test_what_a_long_compilation_frees_is_returned_before_the_program_runs(
    monkeypatch, least, returned
):
    monkeypatch.setattr(placement, "LONG_COMPILATION", least)
    library, size, count = ctypes.CDLL(None), 4096, 50_000
    library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    ones = jax.block_until_ready(jnp.ones(3))
    blocks = [library.malloc(size) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for block in blocks[:-1]:  # glibc keeps them below a block that is in use
        library.free(block)
    before = resident_bytes()
    jax.block_until_ready(jax.jit(lambda x: x * least + 0.5)(ones))
    library.free(blocks[-1])
    assert (before - resident_bytes() > 0.5 * size * count) == returned
