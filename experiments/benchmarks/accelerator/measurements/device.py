"""The device, its measured rates, and the versions of packages."""

import importlib.metadata
import platform
import shutil
import subprocess
from pathlib import Path

import jax

from experiments.benchmarks.accelerator.rates import GIB, copy_rate, product_rate
from experiments.benchmarks.accelerator.result import Result
from experiments.benchmarks.peers.__main__ import machine

PACKAGES = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin", "flax", "optax")
PACKAGES += ("orbax-checkpoint", "numpy", "transformers", "torch", "trl", "rl4p")


def measure(case: str, result: Result, folder: Path) -> None:
    device = jax.devices()[0]
    stats = device.memory_stats() or {}
    kind = machine() if device.platform == "cpu" else device.device_kind
    result.add(what="device", value=f"{len(jax.devices())} x {kind} ({device.platform})")
    if shutil.which("nvidia-smi"):
        query = [
            "nvidia-smi",
            "--query-gpu=name,driver_version,memory.total",
            "--format=csv,noheader",
        ]
        said = subprocess.run(query, capture_output=True, text=True, check=False)
        result.add(what="nvidia-smi", value=said.stdout or said.stderr)
    if "bytes_limit" in stats:
        result.add(what="memory for programs, GiB", value=stats["bytes_limit"] / GIB)
    result.add(
        what="kinds of memory", value=", ".join(x.kind for x in device.addressable_memories())
    )
    result.add(what="bfloat16 products, TFLOP/s", value=product_rate(tiny=result.tiny) / 1e12)
    result.add(what="copy, GB/s read and written", value=copy_rate(tiny=result.tiny) / 1e9)
    result.add(what="Python", value=platform.python_version())
    for name in PACKAGES:
        try:
            result.add(what=name, value=importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            result.add(what=name, value="not installed")
