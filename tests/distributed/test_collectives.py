import subprocess
import sys

import numpy as np

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
