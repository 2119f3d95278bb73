import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.distributed.mesh import Mesh

# On one device and on several: greedy and drawn responses, and three updates on them.
SHAPES = """
import dataclasses, sys, jax, numpy as np
from rl4p.advantage.grpo import GRPO
from rl4p.data.synthetic import Arithmetic
from rl4p.data.prompts import encode_prompts
from rl4p.learner import correction
from rl4p.learner import critic
from rl4p.learner import entropy
from rl4p.learner import kl
from rl4p.distributed import placement
from rl4p.distributed.mesh import Mesh
from rl4p.learner.objective import Objective
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.model.scratch import Scratch
from rl4p.learner.optimizer import AdamW
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.base.types import Rewards, TrainingBatch, TrainState
from rl4p.base.types import Microbatching
from rl4p.learner.gradient_step import gradient_step, shares_prompts
from rl4p.update.reinforce import Reinforce

samplers = [sampler(max_response_tokens=8) for sampler in (NaiveSampler, Continuous)]
optimizer = AdamW(learning_rate=1e-3)
# 16 rows, two on each device; with one device in microbatches of four
terms = dict(
    update=Reinforce(tokens_per_microbatch=4 * 24), correction=correction.NONE(), kl=kl.NONE(),
    entropy=entropy.NONE(), critic=critic.NONE(),
)

kind, *shapes = sys.argv[1:]
model = Scratch(width=32, layers=2, heads=8, num_kv_heads=4, feed_forward_width=48)
if kind == "heads":  # which eight devices do not divide, and neither do four
    model = Scratch(width=48, layers=2, heads=6, num_kv_heads=2, feed_forward_width=48)
if kind == "states":
    model = dataclasses.replace(model, attention_interval=2)
built, start = model.build(Mesh(dp=1), jax.random.key(0))
if kind == "experts":
    config = dataclasses.replace(built.decoder.config, experts=8, chosen_experts=3)
    decoder = dataclasses.replace(built.decoder, config=config, experts="grouped")
    built, start = dataclasses.replace(built, decoder=decoder), decoder.init(jax.random.key(0))

def fed(layer):
    return layer["experts"]["up"] if kind == "experts" else layer["up"]["kernel"]

# Far enough from uniform that the order of a sum does not choose the token; at 10 times, logits are
# rounded by 2e-5, and that is what gradients would differ by.
start = jax.tree.map(lambda x: np.asarray(x) * 3, start) | {"norm": jax.device_get(start["norm"])}

def run(mesh, sampler, system_prompt=None, max_prompt_tokens=16):
    policy = dataclasses.replace(built, mesh=mesh)
    params = jax.device_put(start, placement.param_shardings(mesh, start))
    parts = mesh.devices.shape["fsdp"] * mesh.devices.shape["tp"] * mesh.column_shards
    for x in (params["embedding"], fed(params["layers"])):
        assert x.addressable_shards[0].data.size * parts == x.size
    questions = Arithmetic(digits=2, train_size=4, held_out_size=0).train()
    prompts, _ = encode_prompts(
        questions,
        policy.tokenizer,
        system_prompt=system_prompt,
        max_prompt_tokens=max_prompt_tokens,
    )
    options = {"group_size": 4, "key": jax.random.key(3), "version": 0}
    greedy, _ = sampler(policy, params, prompts, **options, greedy=True)
    sampled, _ = sampler(policy, params, prompts, **options)
    assert len(sampled.tokens_BT.sharding.device_set) == mesh.size
    if system_prompt is not None:  # short responses, which share rows of an update
        ends = sampled.prompt_columns + 1 + np.arange(16)[:, None] * 5 % 7
        here = mesh.shard_rows(np.arange(sampled.tokens_BT.shape[1]) < ends)
        sampled = dataclasses.replace(
            sampled,
            response_mask_BT=sampled.response_mask_BT & here,
            segment_ids_BT=sampled.segment_ids_BT * here.astype(np.int32),
        )
    rewards = Rewards(
        total_B=np.float32(np.arange(16) ** 2 % 5), terms={}, valid_B=np.arange(16) != 6
    )
    rewards = mesh.shard_rows(rewards)
    assert rewards.total_B.addressable_shards[0].data.shape == (16 // mesh.row_shards,)
    advantages = jax.jit(GRPO())(sampled, rewards)
    state = TrainState(
        step=mesh.replicate(np.int32(0)),
        params=params,
        optimizer_state=placement.init_beside(mesh, optimizer.transform().init, params),
        key=mesh.replicate(jax.random.key(1)),
        memory={},
    )
    batch = TrainingBatch(
        trajectories=sampled,
        advantages_BT=advantages,
        loss_mask_BT=sampled.response_mask_BT & rewards.valid_B[:, None],
        scores={},
    )
    model = dict(decoder=policy.decoder, sampling=sampler.sampling, mesh=mesh)
    microbatching = Microbatching(tokens=4 * 24)
    options = ScoreOptions(names=("logprobs", "entropy"), microbatching=microbatching, **model)
    scores = score_tokens(options, params, sampled)
    objective = Objective(**terms, **model)
    places = [x.sharding for x in jax.tree.leaves((state.params, state.optimizer_state))]
    for step in range(3):
        state, metrics = gradient_step(
            objective, optimizer, {}, state, batch, {}
        )
        if not step:
            moments = state.optimizer_state[1][0].mu  # a tenth of the gradient
            moments = jax.device_get(moments)
    arrays = jax.tree.leaves((state.params, state.optimizer_state))
    for place, x in zip(places, arrays, strict=True):
        assert x.sharding.is_equivalent_to(place, x.ndim)
    assert shares_prompts(objective, sampled) is (system_prompt is not None)
    return jax.device_get(
        (greedy.tokens_BT, sampled.tokens_BT, state.params, moments, metrics, scores)
    )

def assert_alike(one, several):
    np.testing.assert_array_equal(one[0], several[0])
    np.testing.assert_array_equal(one[1], several[1])
    for a, b in zip(one[2:4], several[2:4], strict=True):  # Adam makes much of what rounding leaves
        # of a gradient that is 0, as that of the keys' bias: leaf by leaf, that would be compared.
        a, b = (np.concatenate([x.ravel() for x in jax.tree.leaves(tree)]) for tree in (a, b))
        limit = 2e-6 if kind == "states" else 1e-6
        assert np.linalg.norm(a - b) <= limit * np.linalg.norm(a)
    assert one[4].keys() == several[4].keys()
    assert one[4]["update/grad_norm"] > 0
    for name in one[4]:
        np.testing.assert_allclose(one[4][name], several[4][name], rtol=1e-5, atol=1e-6)
    for name in one[5]:
        np.testing.assert_allclose(one[5][name], several[5][name], atol=2e-5)

one = Mesh(dp=1)
if kind in ("shared", "states"):  # prompts that pay for it: four groups of four, on four devices
    long = {"system_prompt": "Add the two numbers, digit by digit.", "max_prompt_tokens": 64}
    alone = run(one, samplers[1], **long)
    for shape in shapes:
        assert_alike(alone, run(Mesh(shape=shape), samplers[1], **long))
elif kind == "separate":  # the last four of eight sample, and the others train
    mesh = Mesh(shape=shapes[0], rollout_devices=4)
    assert not {*mesh.devices.devices.flat} & {*mesh.sampling_mesh(24, 4).devices.devices.flat}
    for sampler in samplers:
        assert_alike(run(one, sampler), run(mesh, sampler))
elif kind in ("layouts", "experts", "heads"):  # a training layout, and tp while sampling
    alone = [run(one, sampler) for sampler in samplers]
    for shape, tp in (each.split("/") for each in shapes):
        mesh, tp = Mesh(shape=shape, sampling_tp=int(tp)), int(tp)
        policy = dataclasses.replace(built, mesh=mesh)
        kv = built.decoder.config.num_kv_heads
        sizes = {"dp": 8 // tp, "fsdp": max(1, tp // kv), "tp": min(tp, kv)}
        assert dict(policy.sampling_mesh.devices.shape) == sizes
        layer = policy.for_sampling(start)["layers"][0]
        width, parts = model.width, tp if model.heads % tp == 0 else min(tp, kv)
        for name, count in (("key", max(1, kv // tp)), ("query", model.heads // parts)):
            part = layer[name]["kernel"].addressable_shards[0].data.shape
            assert part == (width, count * width // model.heads)
        part = (8 // tp, 32, 48) if kind == "experts" else (width, 48 // tp)
        assert fed(layer).addressable_shards[0].data.shape == part
        for sampler, expected in zip(samplers, alone, strict=True):
            assert_alike(expected, run(mesh, sampler))
else:
    sampler = samplers[kind == "continuous"]
    alone = run(one, sampler)
    for shape in shapes:
        assert_alike(alone, run(Mesh(shape=shape), sampler))
"""

DIVIDED = """
import jax, numpy as np
from rl4p.base.errors import InputError
from rl4p.distributed.mesh import Mesh
from rl4p.model.scratch import Scratch
from rl4p.engine.cache import place, prefill

mesh = Mesh(shape="1,2,2")
model = dict(width=32, layers=2, heads=4, feed_forward_width=64)
policy, params = Scratch(**model, num_kv_heads=2).build(mesh, jax.random.key(0))
tokens, rows = np.ones((4, 16), np.int32), np.arange(8)
arrays = mesh.shard_rows((tokens, 0 * tokens[:, 0], 16 * tokens[:, 0]))
prefilled = prefill(policy.decoder, policy.for_sampling(params), *arrays, mesh)
cache = place(None, prefilled, rows // 2, 24, mesh)
for x in jax.tree.leaves(cache.layers):
    assert x.addressable_shards[0].data.shape == (4, 1, *x.shape[2:])  # of [8, 2, ...]
try:
    Scratch(**model, num_kv_heads=1).build(mesh, jax.random.key(0))
except InputError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_cache_is_divided_by_rows_and_heads_which_must_divide(on_devices):
    command = [sys.executable, "-c", DIVIDED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=on_devices(4))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip() == (
        "mesh.tp=2 does not divide the model's num_kv_heads, which is 1: "
        "the nearest that does is 1."
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("continuous", "2,2,2"),
        ("continuous", "8,1,1", "1,8,1", "1,2,4"),
        ("naive", "8,1,1", "1,8,1", "1,2,4", "2,2,2"),
        ("shared", "4,1,1", "1,4,2"),
        ("states", "4,1,1", "1,4,2"),
        ("separate", "1,2,2"),
        ("layouts", "1,8,1/2", "8,1,1/8"),
        ("layouts", "1,2,4/8", "2,2,2/4"),
        ("continuous", "1,2,2,2", "2,1,4,1"),
        ("naive", "1,1,8,1"),
        ("separate", "1,1,4,1"),
        ("layouts", "1,2,4,1/2"),
        ("experts", "1,8,1/8", "2,2,2/4"),
        ("experts", "1,2,4/2", "1,2,2,2/2", "8,1,1/1"),
        ("heads", "1,8,1/8", "1,4,2/4", "1,4,2,1/8"),
    ],
    ids=lambda names: " ".join(names).replace(",", "x"),
)
def test_one_device_and_eight_sample_and_train_alike(on_devices, arguments):
    command = [sys.executable, "-c", SHAPES, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=on_devices(8))
    assert done.returncode == 0, done.stderr[-3000:]


UNEVEN = """
import dataclasses
import jax, numpy as np
from rl4p.distributed.mesh import Mesh
from rl4p.model.scratch import Scratch
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.base.types import Prompt

model = Scratch(width=32, layers=2, heads=4, num_kv_heads=2)
rows = np.random.default_rng(0).integers(1, 200, (5, 9)).tolist()
fields = {"question": "", "answer": "", "task": ""}
prompts = [Prompt(id=str(i), tokens=row, **fields) for i, row in enumerate(rows)]
for kind in (Continuous, NaiveSampler):
    drawn = []
    for mesh in (Mesh(dp=1), Mesh(rollout_devices=3), Mesh(dp=1, fsdp=2, cp=4)):
        policy, params = model.build(mesh, jax.random.key(0))
        policy = dataclasses.replace(policy, end_ids=tuple(range(0, 264, 6)))
        options = {"group_size": 2, "key": jax.random.key(1), "version": 0}
        batch, _ = kind(max_response_tokens=24)(policy, params, prompts, **options)
        batch = jax.device_get(batch)
        drawn.append(np.where(batch.response_mask_BT, batch.tokens_BT, -1))
    assert 10 % policy.sampling_mesh.row_shards
    for other in drawn[1:]:
        np.testing.assert_array_equal(drawn[0], other)
"""


@pytest.mark.slow
def test_devices_that_sample_need_not_divide_the_rows(on_devices):
    """Ten rows are sampled on three devices, and on eight."""
    command = [sys.executable, "-c", UNEVEN]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=on_devices(8))
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_mesh_of_devices_that_are_not_there_is_refused():
    there = jax.device_count()
    with pytest.raises(
        InputError, match=rf"mesh\.dp=1000 needs 1000 devices, but there are {there}\."
    ):
        Mesh(dp=1000).size  # noqa: B018


@pytest.mark.parametrize("dp", [0, -2])
def test_sizes_are_counts(dp):
    with pytest.raises(InputError, match=rf"mesh\.dp={dp} is not a valid shape: sizes are at "):
        Mesh(dp=dp).size  # noqa: B018


def test_some_device_must_be_left_for_updates():
    there = jax.device_count()
    with pytest.raises(InputError, match=f"leaves no device for updates: there are {there}"):
        Mesh(rollout_devices=there).size  # noqa: B018


def test_all_devices_are_taken_by_default():
    assert Mesh().size == jax.device_count()
    assert Mesh(dp=1).size == 1


CORES = """
import os, sys
from rl4p.base.errors import InputError
from rl4p.distributed.mesh import Mesh

cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
assert Mesh(cpu_devices=-1).size == cores >= 1
assert Mesh(dp=1).size == 1
try:
    Mesh(cpu_devices=cores + 1).size
except InputError as error:
    sys.exit(str(error))
"""


@pytest.mark.slow
def test_a_cpu_is_divided_into_a_device_for_each_core_once():
    done = subprocess.run([sys.executable, "-c", CORES], capture_output=True, text=True)
    assert done.stderr.startswith("mesh.cpu_devices=")
    assert "before backends are initialized" in done.stderr


def test_one_device_has_all_rows():
    mesh = Mesh(dp=1)
    tree = {"scale": np.arange(6.0).reshape(3, 2), "embedding": np.arange(3)}
    for place in (mesh.shard_rows, mesh.replicate):
        jax.tree.map(np.testing.assert_array_equal, place(tree), tree)
    assert mesh.replicated.is_fully_replicated
    assert mesh.row_shards == mesh.size == 1


SEVERAL = """
import numpy as np
from rl4p.distributed.mesh import Mesh
from rl4p.base.errors import InputError

def parts(x):
    return [shard.data.shape for shard in x.addressable_shards]

mesh = Mesh(dp=2, fsdp=2, tp=2)
assert (mesh.size, mesh.row_shards, mesh.platform) == (8, 4, "cpu")

# Rows are split along dp and fsdp, and each part is on both devices along tp.
rows = np.arange(16).reshape(8, 2)
split, whole = mesh.shard_rows({"a": rows, "b": rows[:, 0]}), mesh.replicate(rows)
assert parts(split["a"]) == [(2, 2)] * 8 and parts(split["b"]) == [(2,)] * 8
assert parts(whole) == [(8, 2)] * 8
np.testing.assert_array_equal(split["a"], rows)

# The last devices sample, and the first train.
apart = Mesh(rollout_devices=3)
assert [d.id for d in apart.devices.devices.flat] == [0, 1, 2, 3, 4]
sampling = apart.sampling_mesh(24, 4)
assert [d.id for d in sampling.devices.devices.flat] == [5, 6, 7]
assert (apart.row_shards, sampling.row_shards) == (5, 3)
divided = Mesh(fsdp=2, tp=2, dp=1, rollout_devices=4)
sampling = divided.sampling_mesh(24, 4)
assert sampling.devices.shape["tp"] == sampling.row_shards == 2
assert Mesh(dp=2, tp=2).size == 4 and mesh.sampling_mesh(24, 4) is mesh
assert (mesh.devices_per_row, mesh.product_axes) == (2, ("tp",))

# The same devices sample with another tp, in the same order.
layout = Mesh(dp=1, fsdp=8, sampling_tp=4)
sampling = layout.sampling_mesh(24, 12)
assert dict(sampling.devices.shape) == {"dp": 2, "fsdp": 1, "tp": 4}
assert list(sampling.devices.devices.flat) == list(layout.devices.devices.flat)
assert (layout.row_shards, layout.rollout_devices, sampling.platform) == (8, None, "cpu")
both = Mesh(dp=4, rollout_devices=4, sampling_tp=2)
assert both.rollout_devices and both.row_shards == 4
assert dict(both.sampling_mesh(24, 4).devices.shape) == {"dp": 2, "fsdp": 1, "tp": 2}

# Devices that divide columns sample rows of their own, and two along tp share a row.
columns = Mesh(dp=1, fsdp=2, cp=2, tp=2)
assert (columns.row_shards, columns.column_shards) == (2, 2)
sampling = columns.sampling_mesh(24, 4)
assert dict(sampling.devices.shape) == {"dp": 4, "fsdp": 1, "tp": 2}
assert list(sampling.devices.devices.flat) == list(columns.devices.devices.flat)
assert sampling.column_shards == mesh.column_shards == 1
assert parts(columns.shard_rows(rows)) == [(4, 2)] * 8
same = Mesh(dp=4, tp=2, sampling_tp=2)
assert same.sampling_mesh(24, 4) is same

# Devices that hold the same KV head divide the rows.
for heads, fsdp, tp in ((4, 1, 4), (2, 2, 2), (6, 2, 2), (1, 4, 1)):
    sampling = layout.sampling_mesh(24, heads)
    assert dict(sampling.devices.shape) == {"dp": 2, "fsdp": fsdp, "tp": tp}
    assert (sampling.devices_per_row, sampling.row_shards) == (4, 8 // tp)
    assert sampling.product_axes == sampling.head_axes == ("tp", "fsdp")

# Query heads that they do not divide are those of the KV heads.
sampling = layout.sampling_mesh(14, 2)
assert (sampling.product_axes, sampling.head_axes) == (("tp", "fsdp"), ("tp",))

try:
    Mesh(dp=8, sampling_tp=3).sampling_mesh(24, 3)
except InputError as error:
    assert str(error) == "mesh.sampling_tp=3 does not divide the 8 devices that sample."
else:
    raise AssertionError
"""


@pytest.mark.slow
def test_several_devices_split_rows(on_devices):
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL], env=on_devices(8), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize(
    ("sizes", "dimension", "parts", "nearest"),
    [((1, 1, 4), "heads", 6, 3), ((1, 1, 2), "vocabulary", 265, 1), ((1, 5, 1), "width", 32, 4)],
)
def test_a_dimension_that_does_not_divide_is_named(monkeypatch, sizes, dimension, parts, nearest):
    shape = dict(zip(("dp", "fsdp", "tp"), sizes, strict=True))
    monkeypatch.setattr(Mesh, "devices", SimpleNamespace(shape=shape))
    axis, size = ("fsdp", sizes[1]) if dimension == "width" else ("tp", sizes[2])
    sentence = (
        rf"^mesh\.{axis}={size} does not divide the model's {dimension}, which is {parts}: "
        rf"the nearest that does is {nearest}\.$"
    )
    with pytest.raises(InputError, match=sentence):
        Mesh().check_divides({dimension: parts})
    Mesh().check_divides({dimension: 60 * size})


def test_devices_that_divide_columns_divide_width_and_heads(monkeypatch):
    shape = {"dp": 1, "fsdp": 2, "cp": 4, "tp": 2}
    monkeypatch.setattr(Mesh, "devices", SimpleNamespace(shape=shape))
    Mesh().check_divides({"width": 8, "heads": 8, "num_kv_heads": 2, "feed_forward": 2})
    for dimension, axis in (("width", "fsdp"), ("heads", "tp")):
        sentence = (
            rf"^mesh\.{axis} x mesh\.cp=8 does not divide the model's {dimension}, which is 12: "
            r"the nearest that does is 6\.$"
        )
        with pytest.raises(InputError, match=sentence):
            Mesh().check_divides({dimension: 12})


def test_cp_beside_a_shape_is_refused():
    sentence = r"^mesh\.cp=4 has no effect beside mesh\.shape: write cp there, such as mesh\.shape="
    with pytest.raises(InputError, match=sentence):
        Mesh(shape="1,-1,1", cp=4)
    assert Mesh(shape={"fsdp": -1, "cp": 4}).configured_sizes()["cp"] == 4


def test_tp_of_sampling_divides_all_but_the_heads():
    mesh = Mesh(dp=1, sampling_tp=8)
    mesh.check_divides_sampling({"width": 12, "num_kv_heads": 2, "heads": 14, "vocabulary": 16})
    mesh.check_divides({"vocabulary": 12})  # of a teacher, for example, which samples nothing
    with pytest.raises(
        InputError, match=r"^mesh\.sampling_tp=8 does not divide the model's vocabulary, "
    ):
        mesh.check_divides_sampling({"vocabulary": 12})


@pytest.mark.slow
def test_a_platform_that_the_machine_lacks_is_named():
    code = "from rl4p.distributed.mesh import Mesh; Mesh(dp=1).devices"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"JAX_PLATFORMS": "rocm"},
        capture_output=True,
        text=True,
    )
    last = run.stderr.splitlines()[-1]
    assert "InputError: JAX_PLATFORMS=rocm, but JAX finds no such device here" in last
    assert last.endswith("write JAX_PLATFORMS=cpu")
