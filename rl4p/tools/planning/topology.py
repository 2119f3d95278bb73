"""Descriptions of absent TPUs and NVIDIA GPUs, with which XLA compiles without them."""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import jax
from jax.experimental import topologies

from rl4p.base.errors import InputError
from rl4p.configuration.slices import HOST, Chip, chip_of, slice_of
from rl4p.distributed.mesh import Mesh, SamplingMesh

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


# Set before libtpu is loaded. Otherwise it queries the metadata of the TPU host, and no other
# process can load it.
ALONE = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-16",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}


FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"


@dataclass(frozen=True, kw_only=True)
class DescribedMesh(Mesh):
    """A mesh of absent chips, for which programs can be compiled but not run."""

    @cached_property
    def available(self) -> Sequence[Any]:
        assert self.topology is not None  # ensured by `planned`
        return described(self.topology)

    @property
    def platform(self) -> str:
        assert self.topology is not None
        return slice_of(self.topology).chip.platform  # a described GPU has the platform cuda


@dataclass(frozen=True, kw_only=True)
class EstimatedMesh(Mesh):
    """A mesh of absent chips, which divides shapes; nothing can be compiled for it."""

    # The number of chips; None takes all of the slice but `rollout_devices`.
    count: int | None = None

    @property
    def chip(self) -> Chip:
        assert self.topology is not None  # ensured by `estimated`
        return slice_of(self.topology).chip

    @cached_property
    def devices(self) -> Any:
        assert self.topology is not None
        count = self.count or slice_of(self.topology).count - (self.rollout_devices or 0)
        sizes = self.sizes(count, min(count, HOST))
        return jax.sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes))

    def sampling_mesh(self, heads: int, num_kv_heads: int) -> Mesh:
        mesh = super().sampling_mesh(heads, num_kv_heads)
        if not isinstance(mesh, SamplingMesh):
            return mesh
        options = {field.name: getattr(mesh, field.name) for field in fields(SamplingMesh)}
        return EstimatedSamplingMesh(count=self.rollout_devices or self.size, **options)

    @property
    def platform(self) -> str:
        return self.chip.platform


@dataclass(frozen=True, kw_only=True)
class EstimatedSamplingMesh(EstimatedMesh, SamplingMesh):
    """The mesh that samples, of chips that need not exist."""


def estimated(mesh: Mesh) -> Mesh:
    """Returns the mesh to estimate for: a named slice needs no devices and no libtpu."""
    if mesh.topology is None:
        return mesh
    without_accelerators()
    return EstimatedMesh(**{field.name: getattr(mesh, field.name) for field in fields(Mesh)})


def without_accelerators() -> None:
    """Lets JAX use the CPU alone, unless JAX_PLATFORMS says otherwise."""
    if "JAX_PLATFORMS" not in os.environ:
        jax.config.update("jax_platforms", "cpu")


def planned(mesh: Mesh) -> Mesh:
    """Returns the mesh to plan for. Call it before JAX initializes its devices."""
    if mesh.topology is None:
        return mesh
    return DescribedMesh(**{field.name: getattr(mesh, field.name) for field in fields(Mesh)})


def described(topology: str) -> list[Any]:
    """Returns the described chips of a slice such as v5e:4x4 or h100:8."""
    requested = slice_of(topology)
    is_gpu = requested.chip.platform == "gpu"
    module, extra = ("jax_cuda12_plugin", "plan-cuda") if is_gpu else ("libtpu", "plan")
    if importlib.util.find_spec(module) is None:
        raise InputError(
            f"mesh.topology={topology} needs {module}, which is not installed: "
            f"pip install 'rl4p[{extra}]', or add estimate=true."
        )
    if is_gpu:
        without_accelerators()
        return described_gpus(topology)
    for name, value in ALONE.items():
        os.environ.setdefault(name, value)
    without_accelerators()  # otherwise JAX looks for a TPU, since libtpu is installed
    more: dict[str, Any] = dict(requested.chip.description)
    if requested.wiring == "1x1":
        more["chips_per_host_bounds"] = [1, 1, 1]  # libtpu's hosts have four chips or more
    try:
        slice_ = topologies.get_topology_desc(
            platform="tpu",
            topology_name=f"{requested.chip.described_as}:{requested.wiring}",
            **more,
        )
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"libtpu does not know mesh.topology={topology}: {reason}") from error
    return list(slice_.devices)


def gpu_share() -> float:
    """Returns the share of a GPU's memory that JAX takes."""
    return float(os.environ.get(FRACTION, 0.75))


def reports_memory(mesh: Mesh) -> bool:
    """Returns whether the devices report how much memory programs may use."""
    return "bytes_limit" in (mesh.devices.devices.flat[0].memory_stats() or {})


def memory_of(mesh: Mesh) -> tuple[Chip, float]:
    """Returns the chip of a mesh, and the bytes of it that programs may use; 0 if unknown.

    JAX takes a share of an NVIDIA GPU, which XLA_PYTHON_CLIENT_MEM_FRACTION sets.
    """
    if isinstance(mesh, EstimatedMesh):
        share = gpu_share() if mesh.platform == "gpu" else 1.0
        return mesh.chip, share * mesh.chip.memory
    device = mesh.devices.devices.flat[0]
    chip = chip_of(device.device_kind) or Chip(platform=device.platform, kind=device.device_kind)
    if isinstance(mesh, DescribedMesh):
        share = gpu_share() if chip.platform == "gpu" else 1.0
        return chip, share * chip.memory
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return chip, stats["bytes_limit"]
    if chip.platform == "cpu":  # the devices of a CPU share its memory
        return chip, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / mesh.size
    return chip, chip.memory
