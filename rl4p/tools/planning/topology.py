"""The devices of a plan: the ones of this machine, or absent ones that a compiler describes."""

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
from rl4p.tools.planning.gpu import described_gpus

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
    """A mesh of absent chips, which divides shapes; nothing can be compiled for it.

    Attributes:
      count: the number of chips; None takes all of the slice but `rollout_devices`.
    """

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
    """Returns the mesh to plan for. Call it before JAX initializes its devices.

    Raises:
      InputError: the chips of the mesh cannot be described on this machine.
    """
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
