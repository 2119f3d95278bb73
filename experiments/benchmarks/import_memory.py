"""Peak host memory during the import of a checkpoint of 1 GB, as a multiple of its size.

    python -m experiments.benchmarks.import_memory

Writes a bfloat16 checkpoint of random numbers, in shards, to a temporary folder. Imports it in
another process with the dtype kept. Prints the peak memory of that whole process (Python, JAX, the
parameters themselves).
"""

import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp

from rl4p.distributed.mesh import Mesh
from rl4p.model.decoder import Decoder, DecoderConfig
from rl4p.model.huggingface import read_config, read_params, write_model

# Qwen2.5-0.5B with untied heads and fewer words: half a billion parameters.
CONFIG = DecoderConfig(
    vocabulary=84_000,
    width=896,
    layers=24,
    heads=14,
    num_kv_heads=2,
    head_width=64,
    feed_forward_width=4864,
    max_positions=4096,
    tied_embedding=False,
)


def make(folder: Path) -> None:
    decoder = Decoder(config=CONFIG)
    shapes = jax.eval_shape(decoder.init, jax.random.key(0))
    params = jax.tree.map(
        lambda leaf: jax.random.normal(jax.random.key(1), leaf.shape, jnp.bfloat16), shapes
    )
    write_model(folder, decoder, params, (0,), shard_bytes=300 * 10**6)


def read(folder: Path) -> None:
    decoder = Decoder(config=read_config(folder))
    jax.block_until_ready(read_params(folder, decoder, None, Mesh(dp=1)))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    print(json.dumps({"checkpoint_gb": size / 1e9, "peak_gb": peak / 1e9, "ratio": peak / size}))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for task in ("make", "read"):  # one process each: the second one prints its own peak
            subprocess.run([sys.executable, "-m", __spec__.name, task, folder], check=True)


if __name__ == "__main__":
    if sys.argv[1:]:
        {"make": make, "read": read}[sys.argv[1]](Path(sys.argv[2]))
    else:
        main()
