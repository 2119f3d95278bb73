import subprocess
import sys

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


def test_several_devices_divide_parameters(on_devices):
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL], env=on_devices(8), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
