"""The cost of giving a server new weights: seconds and host memory for a checkpoint of 1 GB.

    python -m experiments.benchmarks.weight_sync [KEY=VALUE ...]

Writes a model with random weights, reads it in this process (the trainer), serves it in another
(`python -m rl4p.serve`), changes all weights and publishes them through `rollout=sglang`. Overrides
replace parts of the model, such as `width=512`. With `vllm=URL path=FOLDER` the weights go to a
vLLM that serves the model of this folder, and `server` is left out. Prints:

* `bytes`: the size of the checkpoint, whose weights are float32.
* `export`, `load`: seconds until the files are complete, and from then on until the server has
  loaded and the client has verified them (version, checksums, probe).
* `disk_write`, `disk_read`: seconds to write and read as many bytes in the same folder, with
  `fsync` and with an empty cache.
* `of_the_disk`: `export` + `load` divided by `disk_write` + `disk_read`.
* `copies`, `of_copies`: seconds to copy as many bytes twice, into a file without `fsync` and from
  its cache into memory; and `export` + `load` divided by them.
* `trainer`, `server`: host memory divided by `bytes`: `held` before and `peak` during the
  publication, without what the process has without a model (`process`, in bytes).
"""

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rl4p.distributed.mesh import Mesh
from rl4p.model.huggingface import write_policy
from rl4p.model.pretrained import Pretrained
from rl4p.model.scratch import Scratch
from rl4p.rollout.sglang import SGLang
from rl4p.rollout.vllm import VLLM

MODEL = {"width": 1024, "layers": 20, "heads": 16, "num_kv_heads": 8, "feed_forward_width": 3072}
MODEL |= {"vocabulary": 8192}
PIECE = 2**24  # bytes


def main() -> None:
    """Prints the figures as JSON."""
    changed = dict(word.split("=", 1) for word in sys.argv[1:])
    url, path = changed.pop("vllm", None), changed.pop("path", None)
    if unknown := changed.keys() - MODEL.keys():
        raise SystemExit(f"{', '.join(sorted(unknown))}: choose from {', '.join(MODEL)}.")
    model = MODEL | {name: int(value) for name, value in changed.items()}
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        found = to_vllm(Path(folder), url, path) if url and path else measure(Path(folder), model)
        print(json.dumps(found, indent=2))


def measure(folder: Path, model: dict[str, int]) -> dict[str, Any]:
    """Returns the figures of one publication."""
    make(folder / "model", model)
    warm = Pretrained(path="rl4p/tiny").build(Mesh(dp=1), jax.random.key(0))
    with served("model=tiny") as server, client(folder, warm[0], server.url) as engine:
        engine.publish(warm[1], 0)  # compiles, and loads what is imported late
        process = {"trainer": memory(os.getpid())[0], "server": memory(server.pid)[0]}
    del warm
    policy, params = Pretrained(path=str(folder / "model")).build(Mesh(dp=1), jax.random.key(0))
    size = sum(x.nbytes for x in jax.tree.leaves(params))
    with (
        served("model=pretrained", f"model.path={folder / 'model'}") as server,
        client(folder, policy, server.url) as engine,
    ):
        engine.publish(params, 0)
        params = jax.block_until_ready(jax.tree.map(grown, params))
        gc.collect()  # JAX releases arrays that came from NumPy only now
        pids = {"trainer": os.getpid(), "server": server.pid}
        held = {name: memory(pid)[0] for name, pid in pids.items()}
        for pid in pids.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak so far is forgotten
        export, whole = published(engine, params, 1)
        peak = {name: memory(pid)[1] for name, pid in pids.items()}
    return seconds(folder, size, export, whole) | {
        name: {
            "process": process[name],
            "held": (held[name] - process[name]) / size,
            "peak": (peak[name] - process[name]) / size,
        }
        for name in pids
    }


def to_vllm(folder: Path, url: str, path: str) -> dict[str, Any]:
    """Returns the seconds of one publication to a running vLLM."""
    policy, params = Pretrained(path=path).build(Mesh(dp=1), jax.random.key(0))
    with client(folder, policy, url, VLLM) as engine:
        engine.publish(params, 0)
        params = jax.block_until_ready(jax.tree.map(grown, params))
        export, whole = published(engine, params, 1)
    return seconds(folder, sum(x.nbytes for x in jax.tree.leaves(params)), export, whole)


def seconds(folder: Path, size: int, export: float, whole: float) -> dict[str, float]:
    """Returns the seconds of a publication, and those of the disk and of copies."""
    write, read = disk(folder / "file", size)
    copies = sum(disk(folder / "copy", size, cached=True))
    return {
        "bytes": size,
        "export": export,
        "load": whole - export,
        "disk_write": write,
        "disk_read": read,
        "of_the_disk": whole / (write + read),
        "copies": copies,
        "of_copies": whole / copies,
    }


def make(folder: Path, model: dict[str, int]) -> None:
    """Writes a model with random weights."""
    options: Any = model
    policy = Scratch(**options).policy(Mesh(dp=1))
    random = np.random.default_rng(0)

    def draw(x: Any) -> np.ndarray:
        return 0.02 * random.standard_normal(x.shape, np.float32)

    shapes = jax.eval_shape(policy.decoder.init, jax.random.key(0))
    write_policy(folder, policy, jax.tree.map(draw, shapes))


@jax.jit
def grown(x: jax.Array) -> jax.Array:
    return x * 1.01


class Served:
    """A process that serves a model, with its address."""

    def __init__(self, process: subprocess.Popen) -> None:
        assert process.stdout is not None
        self.pid = process.pid
        self.url = process.stdout.readline().split()[-1]


@contextmanager
def served(*arguments: str) -> Iterator[Served]:
    """Serves a model in a process of its own."""
    command = [sys.executable, "-m", "rl4p.serve", "port=0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Served(process)
        finally:
            process.terminate()


@contextmanager
def client(folder: Path, policy: Any, url: str, kind: Any = SGLang) -> Iterator[Any]:
    """Opens an engine whose completions come from the server."""
    sampler = kind(servers=(url,), max_response_tokens=8, weights_folder=str(folder / "shared"))
    engine = sampler.open(policy)
    try:
        yield engine
    finally:
        engine.close()


def published(engine: Any, params: Any, version: int) -> tuple[float, float]:
    """Publishes weights; returns the seconds until they are written, and until they are served."""
    weights = engine.transfer.folder
    written, write = [], weights.write

    def timed(*arguments: Any) -> Any:
        exported = write(*arguments)
        written.append(time.perf_counter())
        return exported

    weights.write = timed
    start = time.perf_counter()
    engine.publish(params, version)
    weights.write = write
    return written[0] - start, time.perf_counter() - start


def memory(pid: int) -> tuple[int, int]:
    """Returns the resident bytes of a process, now and at most."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split()[1] for line in lines if line.startswith("Vm")}
    return int(found["VmRSS"]) * 1024, int(found["VmHWM"]) * 1024


def disk(path: Path, size: int, *, cached: bool = False) -> tuple[float, float]:
    """Returns the seconds to write and to read a file of this size, with or without the disk."""
    piece = np.random.default_rng(0).bytes(PIECE)
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for _ in range(0, size, PIECE):
            file.write(piece)
        if not cached:
            os.fsync(file.fileno())
    write = time.perf_counter() - start
    with path.open("rb", buffering=0) as file:
        if not cached:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        start, into = time.perf_counter(), bytearray(PIECE)
        while file.readinto(into):
            pass
    path.unlink()
    return write, time.perf_counter() - start


if __name__ == "__main__":
    main()
