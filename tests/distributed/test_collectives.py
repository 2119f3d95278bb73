"""Tests that devices which divide the columns of a row compute what one device computes."""

import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.distributed import collectives
from rl4p.distributed.mesh import Mesh


def test_one_device_has_nothing_to_add_up():
    mesh = Mesh(dp=1)
    tree = {"scale": np.arange(6.0).reshape(3, 2), "embedding": np.arange(3)}
    for function in (
        collectives.total,
        collectives.largest,
        collectives.total_gradient,
        collectives.gather_rows,
    ):
        assert function(mesh, tree) is tree or function(mesh, tree) == tree


SEVERAL = """
from functools import partial
import jax, jax.numpy as jnp, numpy as np
from rl4p.distributed import collectives, partition
from rl4p.distributed.collectives import REPLICATED, ROWS, on_rows, total
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.placement import param_shardings

mesh = Mesh(dp=2, fsdp=2, tp=2)

# All rows are on each device.
rows = np.arange(16).reshape(8, 2)
gathered = jax.jit(partial(collectives.gather_rows, mesh))(mesh.shard_rows(rows))
assert gathered.addressable_shards[0].data.shape[0] == 8
np.testing.assert_array_equal(gathered, rows)

# Sums and the largest go over all rows, once.
def of_rows(shared, rows):
    return total(mesh, jnp.sum(rows)), collectives.largest(mesh, jnp.max(rows)), total(mesh, shared)

def run(function, shared, rows, results):
    return jax.jit(lambda *x: on_rows(mesh, function, *x, results=results))(shared, rows)

all_rows, largest, shared = run(of_rows, jnp.int32(1), rows, REPLICATED)
assert (int(all_rows), int(largest), int(shared)) == (int(rows.sum()), 15, 4)

# Each device has its own rows.
scaled = run(lambda shared, rows: rows * shared, jnp.int32(3), rows, ROWS)
np.testing.assert_array_equal(scaled, rows * 3)

# A gradient is that of one device: parts along fsdp, gathered in bfloat16, are added up once.
random = np.random.default_rng(0)
params = {
    "embedding": random.normal(size=(4, 8)).astype(np.float32),
    "norm": {"scale": random.normal(size=8).astype(np.float32)},
}
sharded = jax.device_put(params, param_shardings(mesh, params))
dtypes = []

def loss(params, rows, dtype):
    params = partition.gather(params, dtype)
    dtypes.append(params["embedding"].dtype.name)
    x = params["embedding"].astype(jnp.float32)[rows % 4]
    return jnp.sum(jnp.sin(x * params["norm"]["scale"]) * (1.0 + rows[..., None]))

def gradient(dtype):
    def of(params, rows):
        return collectives.total_gradient(mesh, jax.grad(loss)(params, rows, dtype))
    return of

for dtype, tolerance in (("float32", 1e-5), ("bfloat16", 5e-2)):
    ours = jax.jit(
        lambda p, r, dtype=dtype: on_rows(
            mesh, gradient(dtype), p, r, results=collectives.parts(mesh, p)
        )
    )(sharded, rows)
    expected = jax.grad(loss)(params, rows, "float32")
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
        assert a.dtype == np.float32
assert "bfloat16" in dtypes

# The gradient of a gathered parameter is added up in the parameter's own dtype: parts of 1 and of
# 2 ** -9 would be 1 in bfloat16.
data = Mesh(dp=1, fsdp=2)
pieces = jnp.asarray([1.0, 2.0**-9], jnp.float32)

def small(params, rows):
    def loss(params):
        whole = partition.gather(params, "bfloat16")["embedding"]
        return jnp.sum(whole.astype(jnp.float32) * rows[0])
    return collectives.total_gradient(data, jax.grad(loss)(params))

ones = {"embedding": jnp.ones((2, 4))}
added = jax.jit(
    lambda p, r: on_rows(data, small, p, r, results=collectives.parts(data, p))
)(jax.device_put(ones, param_shardings(data, ones)), pieces)
np.testing.assert_array_equal(added["embedding"], np.full((2, 4), 1 + 2.0**-9, np.float32))

# None stops before the others along fsdp; along dp they are free to.
def steps(shared, rows):
    return jnp.reshape(partition.in_step(rows[0, 0]), (1, 1))

counts = run(steps, jnp.int32(0), rows, ROWS)
np.testing.assert_array_equal(counts[:, 0], [4, 4, 12, 12])
"""


def test_several_devices_add_up(on_devices):
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL], env=on_devices(8), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_one_device_has_all_columns_and_heads():
    x, heads = jnp.arange(12).reshape(2, 6), jnp.ones((2, 6, 4, 8))
    assert collectives.devices() == 1
    for function in (
        collectives.own,
        collectives.whole,
        collectives.to_columns,
        collectives.own_heads,
    ):
        assert function(x) is x
    assert collectives.to_heads(heads, heads, heads) == (heads, heads, heads)
    assert collectives.predicting(heads).shape == (2, 5, 4, 8)
    assert collectives.predicted(x).tolist() == x[:, 1:].tolist()
    assert collectives.shift_to_targets(x).tolist() == [[0, *row] for row in x.tolist()]


DIVIDED = """
import jax, jax.numpy as jnp, numpy as np
from rl4p.distributed import collectives
from rl4p.distributed.collectives import on_rows
from rl4p.distributed.mesh import Mesh
from rl4p.model.attention import AttentionInputs, attend, visible

random = np.random.default_rng(0)
B, T, H, h = 2, 16, 8, 4

def run(mesh, function, rows):
    return jax.jit(lambda rows: on_rows(mesh, lambda _, x: function(*x), jnp.int32(0), rows,
                                        results=jax.sharding.PartitionSpec()))(rows)

# The parts are neighbours, and in order; a device has the part of its columns only.
mesh, x = Mesh(dp=1, cp=4), jnp.arange(24.0).reshape(2, 12)
np.testing.assert_array_equal(run(mesh, lambda x: collectives.whole(collectives.own(x)), (x,)), x)
seen = run(mesh, lambda x: collectives.whole(collectives.own(x)[:, :1]), (x,))
np.testing.assert_array_equal(seen, x[:, ::3])
np.testing.assert_array_equal(
    run(mesh, lambda x: collectives.shift_to_targets(collectives.predicted(x)), (x,)),
    x.at[:, 0].set(0),
)
try:
    run(mesh, lambda x: collectives.own(x[:, :10]), (x,))
except ValueError as error:
    assert str(error) == "4 devices along cp cannot divide 10 columns evenly."
else:
    raise AssertionError

# All devices compute the same loss: the gradients of their parts add up to the gradient.
def gradient(x):
    def loss(x):
        return jnp.sum(jnp.sin(collectives.whole(collectives.own(x))) * jnp.arange(12.0))
    return jax.lax.psum(jax.grad(loss)(x), "cp")

expected = jnp.cos(x) * jnp.arange(12.0)
assert jnp.abs(expected).max() > 1
np.testing.assert_allclose(run(mesh, gradient, (x,)), expected, rtol=1e-6)

# Attention of own heads is attention, also beside tp and with copies of KV heads.
def attention(q, k, v, sinks, exchanged=True):
    if exchanged:
        q, k, v = collectives.to_heads(*(collectives.own(x) for x in (q, k, v)))
        sinks = collectives.own_heads(sinks)
    places = jnp.broadcast_to(jnp.arange(T), (B, T))
    ones, angle = jnp.ones_like(places), jnp.zeros((1, 1, 1, 1))
    view = AttentionInputs(angle, angle, visible(places, ones, places, ones), ones, ones)
    k, v = k.transpose(0, 2, 3, 1), v.swapaxes(1, 2)
    options = dict(query_scalar=4.0, softcap=None, in_order=True, sinks_H=sinks)
    attended = attend(q, k, v, view, **options)
    return collectives.whole(collectives.to_columns(attended)) if exchanged else attended

for sizes, K in (({"cp": 4}, 4), ({"cp": 4}, 2), ({"cp": 8}, 2), ({"cp": 2, "tp": 2}, 4),
                 ({"cp": 4, "tp": 2}, 2), ({"cp": 2, "tp": 4}, 4)):
    q, k, v = (jnp.asarray(random.normal(size=(B, T, n, h)), jnp.float32) for n in (H, K, K))
    sinks = jnp.asarray(random.normal(size=H), jnp.float32)
    np.testing.assert_allclose(
        run(Mesh(dp=1, **sizes), attention, (q, k, v, sinks)),
        attention(q, k, v, sinks, exchanged=False),
        atol=1e-6,
    )
"""


def run(on_devices, script, *arguments):
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env=on_devices(8),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_devices_exchange_columns_for_heads(on_devices):
    run(on_devices, DIVIDED)


# A kernel, which the compiler cannot divide, on the heads of each device.
KERNEL = """
import jax, jax.numpy as jnp, numpy as np
from functools import partial
from rl4p.distributed import collectives
from rl4p.distributed.collectives import REPLICATED, on_rows
from rl4p.distributed.mesh import Mesh
from rl4p.model.attention import splash

B, T, H, K, h = 1, 48, 4, 2, 16
random = np.random.default_rng(0)
shapes = (B, T, H, h), (B, T, K, h), (B, T, K, h)
arrays = tuple(jnp.asarray(random.normal(size=shape), jnp.float32) for shape in shapes)
ids = jnp.asarray(np.arange(T) < 41, jnp.int32)[None]
run = partial(splash, query_scalar=16.0, softcap=None, interpret=True)

def gradient(q, k, v):
    def total(*arrays):
        q, k, v = collectives.to_heads(*map(collectives.own, arrays))
        attended = run(q, k.transpose(0, 2, 3, 1), v.swapaxes(1, 2), ids, ids)
        attended = collectives.whole(collectives.to_columns(attended))
        return jnp.sum(jnp.sin(attended) * ids[..., None])

    gradient = jax.grad(total, argnums=(0, 1, 2))(q, k, v)
    return jax.lax.psum(gradient, "cp") if collectives.devices() > 1 else gradient

expected = jax.jit(gradient)(*arrays)
for mesh in (Mesh(dp=1, cp=4), Mesh(dp=1, cp=2, tp=2)):
    ours = jax.jit(lambda rows, mesh=mesh: on_rows(
        mesh, lambda _, rows: gradient(*rows), jnp.int32(0), rows, results=REPLICATED
    ))(arrays)
    for a, b in zip(ours, expected, strict=True):
        assert np.linalg.norm(b) > 0.1
        assert np.linalg.norm(a - b) <= 1e-6 * np.linalg.norm(b)
"""


@pytest.mark.slow
def test_a_kernel_runs_the_heads_of_its_device(on_devices):
    run(on_devices, KERNEL)


# Scores and gradients of a family of models, on one device and on eight.
FAMILIES = """
import sys, jax, jax.numpy as jnp, numpy as np
from dataclasses import replace
from rl4p.distributed import placement
from rl4p.distributed.mesh import Mesh
from rl4p.learner import correction
from rl4p.learner import critic
from rl4p.learner.critic import Separate
from rl4p.learner.critic import Shared
from rl4p.learner.entropy import Bonus
from rl4p.learner.gradient_step import forward_backward
from rl4p.learner import kl
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.learner.objective import Objective
from rl4p.model.decoder import Decoder, DecoderConfig
from rl4p.model.decoder_config import LatentConfig
from rl4p.model.lora import LoRA, merge_trees
from rl4p.base.types import Microbatching, Sampling, TrainingBatch, Trajectories, TrainState
from rl4p.update.gkd import GKD
from rl4p.update.gspo import GSPO
from rl4p.update.sft import SFT

B, T, V = 8, 53, 64
FAMILIES = {
    "dense": {"num_kv_heads": 8, "attention_bias": True},
    "groups": {"num_kv_heads": 2, "query_key_norm": "head", "tied_embedding": False},
    "sliding": {"sliding": (True, False), "window": 7, "attention_sinks": True,
                "query_key_norm": "whole"},
    "experts": {"experts": 4, "chosen_experts": 2},
    "latent": {
        "num_kv_heads": 8, "rotary_width": 2, "mixers": ("latent",) * 2,
        "latent": LatentConfig(
            rank=16, query_rank=8, unrotated_width=2, rotated_width=2, value_width=6
        ),
    },
    "packed": {},
    "adapters": {},
    "teacher": {},
    "support": {"num_kv_heads": 2},
}
name, *shapes = sys.argv[1:]
config = DecoderConfig(**{
    "vocabulary": V, "width": 32, "layers": 2, "heads": 8, "num_kv_heads": 4, "head_width": 4,
    "feed_forward_width": 48, "max_positions": 64,
} | FAMILIES[name])
decoder = Decoder(config=config, remat="layer", experts="grouped" if name == "experts" else "dense")
start, frozen = decoder.init(jax.random.key(0)), {}
if name == "packed":
    no_critic = critic.NONE()
else:
    critic = Separate() if name == "dense" else Shared()
    head = critic.init(decoder, start)
    head["value"]["kernel"] = head["value"]["kernel"] + 0.1
    start["critic"] = head
if name == "adapters":
    decoder, lora = replace(decoder, lora=LoRA(rank=4)), LoRA(rank=4)
    critic_params, frozen = {"critic": start.pop("critic")}, start
    start = lora.init(jax.random.key(1), frozen)
    start = jax.tree.map(lambda x: x + 0.02, start) | critic_params
teacher = None
if name == "teacher":
    teacher = replace(decoder, config=replace(config, vocabulary=72, feed_forward_width=16))
    own = teacher.init(jax.random.key(2))
    frozen = {"teacher": own | {"embedding": 10 * own["embedding"]}}
random = np.random.default_rng(0)
first, last = random.integers(0, 9, B)[:, None], random.integers(20, T, B)[:, None]
column = np.arange(T)[None]
real = (column >= first) & (column <= last)
zeros = np.zeros((B, T), np.float32)
trajectories = Trajectories(
    tokens_BT=random.integers(0, V, (B, T)).astype(np.int32),
    response_mask_BT=real & (column >= first + 6),
    positions_BT=np.where(real, column - first, 0).astype(np.int32),
    segment_ids_BT=real.astype(np.int32),
    behaviour_logprobs_BT=zeros - 4,
    policy_version_BT=np.zeros((B, T), np.int32),
    group_ids_B=np.arange(B, dtype=np.int32),
    finish_B=np.zeros(B, np.int8),
)
mask = trajectories.response_mask_BT
if name == "support":  # of 1 to 5 recorded tokens, the first of them the drawn one
    tokens = trajectories.tokens_BT[..., None] + np.arange(5, dtype=np.int32) * 7
    logprobs = np.where(np.arange(5) <= random.integers(0, 5, (B, T, 1)), -1, -np.inf)
    trajectories = replace(
        trajectories, alternatives_BTA=tokens % V,
        alternative_logprobs_BTA=logprobs.astype(np.float32),
    )
sampling = Sampling(temperature=0.8, replay_support=name == "support")
scores = {x: random.normal(size=(B, T)).astype(np.float32) for x in ("returns", "values")}
advantages = random.normal(size=(B, T)).astype(np.float32) * mask

def results(mesh, tokens):
    update = GSPO(tokens_per_microbatch=tokens, clip_high=10.0, clip_low=0.9)
    if name == "packed":
        update = SFT(tokens_per_microbatch=tokens, pack=True)
    if name == "teacher":
        update = GKD(tokens_per_microbatch=tokens, beta=0.3)
    if name == "experts":
        update = replace(update, router_loss=0.3, router_bias_rate=0.1)
    model = {"decoder": decoder, "sampling": sampling, "mesh": mesh}
    terms = {"correction": correction.NONE(), "kl": kl.NONE()}
    objective = Objective(
        update=update, entropy=Bonus(alpha=0.1), critic=critic, teacher=teacher, **terms, **model
    )
    params = jax.device_put(start, placement.param_shardings(mesh, start))
    base = jax.device_put(frozen, placement.param_shardings(mesh, frozen))
    parts, merged = mesh.devices.size // mesh.devices.shape["dp"], merge_trees(base, params)
    assert merged["embedding"].addressable_shards[0].data.size * parts == merged["embedding"].size
    batch = mesh.shard_rows(TrainingBatch(
        trajectories=trajectories, advantages_BT=advantages, loss_mask_BT=mask, scores=scores
    ))
    names = ("logprobs", "entropy", "collision")
    values = critic.values if critic.active else None
    options = ScoreOptions(
        names=names, microbatching=Microbatching(tokens=tokens), values=values, **model
    )
    scored = score_tokens(options, merged, batch.trajectories)
    state = TrainState(step=mesh.replicate(np.int32(0)), params=params, optimizer_state=(),
                       key=mesh.replicate(jax.random.key(1)), memory={})
    gradient = forward_backward(objective, base, state, batch, {"entropy": jnp.float32(0.1)})
    for x, like in zip(jax.tree.leaves(gradient.params), jax.tree.leaves(params), strict=True):
        # Along tp the compiler chooses.
        assert x.sharding.is_equivalent_to(like.sharding, x.ndim) or mesh.devices.shape["tp"] > 1
    return jax.device_get((scored, gradient.params, gradient.sums))

def alike(a, b, what, tolerance=1e-6):
    norm = np.linalg.norm(a)
    assert norm > 0, what
    assert np.linalg.norm(a - b) <= tolerance * norm, (what, np.linalg.norm(a - b) / norm)

def flat(tree):
    return np.concatenate([x.ravel() for x in jax.tree.leaves(tree)])

expected = results(Mesh(dp=1), 4 * T)
for shape in shapes:
    ours = results(Mesh(shape=shape), T)
    for x in expected[0]:
        alike(expected[0][x] * mask, ours[0][x] * mask, (shape, x))
    alike(flat(expected[1]), flat(ours[1]), (shape, "gradient"))
    pairs = zip(jax.tree.leaves_with_path(expected[1]), jax.tree.leaves(ours[1]), strict=True)
    for (path, x), other in pairs:
        place = jax.tree_util.keystr(path)
        if "key']['bias" not in place:  # a softmax does not read it
            alike(x, other, (shape, place), tolerance=1e-5)
    for x in expected[2]:
        np.testing.assert_allclose(expected[2][x], ours[2][x], rtol=1e-5, atol=1e-6, err_msg=x)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "shapes"),
    [
        ("groups", ("2,2,2,1",)),
        pytest.param("dense", ("1,1,8,1", "1,2,2,2"), marks=pytest.mark.slow),
        pytest.param(
            "groups", ("1,1,8,1", "1,4,2,1", "2,1,2,2", "1,1,4,2"), marks=pytest.mark.slow
        ),
        pytest.param("sliding", ("1,2,4,1", "1,1,2,4"), marks=pytest.mark.slow),
        pytest.param("latent", ("1,2,4,1", "1,1,2,4"), marks=pytest.mark.slow),
        pytest.param("packed", ("1,2,4,1", "2,1,2,2"), marks=pytest.mark.slow),
        pytest.param("teacher", ("1,4,2,1", "1,2,2,2"), marks=pytest.mark.slow),
        pytest.param("support", ("1,2,4,1", "2,1,2,2"), marks=pytest.mark.slow),
        pytest.param("adapters", ("1,2,4,1", "2,1,2,2"), marks=pytest.mark.slow),
        pytest.param("experts", ("1,2,4,1", "2,1,4,1", "1,1,4,2"), marks=pytest.mark.slow),
    ],
    ids=lambda x: x if isinstance(x, str) else " ".join(x).replace(",", "x"),
)
def test_scores_and_gradients_are_those_of_one_device(on_devices, family, shapes):
    run(on_devices, FAMILIES, family, *shapes)


# The compiled update of rows that are longer than a microbatch.
MEMORY = """
from rl4p.tools.planning.costs import cost
from rl4p.tools.planning.programs import update
from tests.support.estimates import CPU, estimate_of

def planned(shape, *more):
    words = (f"mesh.shape='{shape}'", "model.layers=2", "model.remat=layer")
    run = estimate_of(
        *words, "update.tokens_per_microbatch=128", "max_response_tokens=960", "group_size=2", *more
    ).run
    assert run.trajectories().tokens_BT.shape[1] == 1024
    return cost(update(run), CPU, run.mesh)

rows, columns = planned("1,8,1"), planned("1,2,4,1")
exchanges = [kind for kind in columns.collectives if kind.startswith("all-to-all")]
assert exchanges == ["all-to-all over cp"] and columns.collectives[exchanges[0]].count > 0
assert not any(kind.startswith("all-to-all") for kind in rows.collectives)
assert 0 < columns.temporaries < 0.4 * rows.temporaries
assert 0.99 < columns.arguments / rows.arguments < 1.1  # parameters are divided by eight in both
"""


@pytest.mark.slow
def test_an_update_of_long_rows_needs_a_share_of_the_memory(on_devices):
    run(on_devices, MEMORY)
