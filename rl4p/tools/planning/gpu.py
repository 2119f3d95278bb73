"""Descriptions of absent NVIDIA GPUs, with which XLA compiles for them without a driver."""

import os
from typing import Any

from jax.experimental import topologies

from rl4p.configuration.slices import HOST, slice_of

# Sources: NVIDIA's white papers of the architectures Ampere, Ada, Hopper and Blackwell.
#   compute capability, multiprocessors, L2 cache in MiB, highest clock in GHz
GPUS = {
    "a100": ("8.0", 108, 40, 1.41),
    "a100_40gb": ("8.0", 108, 40, 1.41),
    "l4": ("8.9", 58, 48, 2.04),
    "l40s": ("8.9", 142, 96, 2.52),
    "rtx4080": ("8.9", 76, 64, 2.51),
    "rtx4090": ("8.9", 128, 72, 2.52),
    "rtx5090": ("12.0", 170, 96, 2.41),
    "h100": ("9.0", 132, 50, 1.98),
    "h200": ("9.0", 132, 50, 1.98),
    "b200": ("10.0", 148, 126, 1.97),
}
# Source: CUDA Programming Guide, "Compute Capabilities". Of a multiprocessor:
#   threads, shared memory in KiB, float32 units
GENERATIONS = {
    "8.0": (2048, 164, 64),
    "8.9": (1536, 100, 128),
    "9.0": (2048, 228, 128),
    "10.0": (2048, 228, 128),
    "12.0": (1536, 100, 128),
}
BLOCKS_OF_THREADS = 2**31 - 1, 2**16 - 1, 2**16 - 1  # in x, y and z

# XLA's GpuTargetConfigProto. A block of threads may have one KiB less of shared memory than its
# multiprocessor.
TARGET = """
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor} }}
  core_count: {cores}
  fpus_per_core: {units}
  clock_rate_ghz: {clock}
  memory_bandwidth: {bandwidth}
  device_memory_size: {memory}
  l2_cache_size: {cache}
  shared_memory_per_core: {shared}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {optional}
  threads_per_core_limit: {threads}
  threads_per_block_limit: 1024
  threads_per_warp: 32
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  block_dim_limit_x: {x}
  block_dim_limit_y: {y}
  block_dim_limit_z: {z}
}}
platform_name: "CUDA"
runtime_version {{ major: 12 minor: 8 patch: 0 }}
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{kind}"
"""


def target_of(name: str) -> str:
    """Returns the description of a GPU of `chips.py` for XLA."""
    capability, cores, cache, clock = GPUS[name]
    threads, shared, units = GENERATIONS[capability]
    major, minor = capability.split(".")
    chip = slice_of(f"{name}:1").chip
    x, y, z = BLOCKS_OF_THREADS
    return TARGET.format(
        major=major,
        minor=minor,
        cores=cores,
        units=units,
        clock=clock,
        bandwidth=round(chip.bandwidth),
        memory=round(chip.memory),
        cache=cache * 2**20,
        shared=shared * 2**10,
        optional=(shared - 1) * 2**10,
        threads=threads,
        x=x,
        y=y,
        z=z,
        kind=chip.kind,
    )


# Without a GPU to try them on, XLA finds no tiles for some products in Triton.
FLAG = "--xla_gpu_enable_triton_gemm=false"


def described_gpus(topology: str) -> list[Any]:
    """Returns described GPUs, such as those of h100:8; of each host at most eight.

    Call it before XLA reads its flags.
    """
    flags = os.environ.get("XLA_FLAGS", "").split()
    os.environ["XLA_FLAGS"] = " ".join(dict.fromkeys([*flags, FLAG]))
    name, _, count = topology.partition(":")
    hosts, each = max(1, int(count) // HOST), min(int(count), HOST)
    described = topologies.get_topology_desc(
        topology_name=name,
        platform="cuda",
        target_config=target_of(name),
        topology=f"1x{hosts}x{each}",
    )
    return list(described.devices)
