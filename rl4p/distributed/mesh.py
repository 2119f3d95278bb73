"""The device mesh of a run, and the shardings of rows on it."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal

import jax
import numpy as np
from jax.experimental.mesh_utils import create_device_mesh
from jax.sharding import NamedSharding, PartitionSpec

from rl4p.base.errors import InputError
from rl4p.configuration.bounds import Positive
from rl4p.configuration.slices import slice_of
from rl4p.distributed.partition import RULES
from rl4p.distributed.processes import ProcessOptions, place

AXES = ("dp", "fsdp", "cp", "tp")
ROW_AXES = ("dp", "fsdp")  # these divide the rows of a batch
AUTO = jax.sharding.AxisType.Auto


@dataclass(frozen=True, kw_only=True)
class Mesh(ProcessOptions):
    """A mesh: `dp` and `fsdp` divide rows, `cp` columns, and `fsdp`, `cp` and `tp` parameters.

    Attributes:
      dp: data-parallel devices: each has its own rows, and their gradients are summed. -1 takes
        all devices that the other axes leave.
      fsdp: data-parallel devices that also divide the parameters, which are gathered layer by
        layer. -1 takes all devices that the other axes leave, `host` the devices of one process
        that `cp` and `tp` leave.
      cp: devices that share each row and divide its columns, in updates and in scores
        (`collectives.py`). They also divide the parameters, as `fsdp` does. They sample other rows.
      tp: devices that share each row and divide heads, feed-forward (or experts) and vocabulary.
      shape: all axes at once, in place of the options above: [1,-1,1] for dp, fsdp and tp,
        [1,2,4,1] for dp, fsdp, cp and tp, {dp:2,fsdp:-1}, or the strings "1,-1,1", "dp:2,fsdp:-1".
        Quote a string twice on a command line, since Hydra takes a bare comma for a sweep.
      cpu_devices: the number of devices that a CPU is divided into; -1 is one for each core, and
        None leaves it at JAX's one. The cores of one device share large matrix products well, but
        decoding hardly at all. Without `fsdp` or `tp`, every device holds all parameters.
      topology: the chips that must be present, such as v5e:4x4 (`chips.py`); `rl4p.plan` compiles
        for them without having them. None accepts any devices.
      rollout_devices: the number of devices, taken from the end, that only sample. The axes above
        divide the other devices. Each sampling device holds all parameters, or its shard along
        `tp`. None: every device both samples and trains.
      sampling_tp: `tp` while the policy samples: each device then reads a smaller share of the
        parameters at a decode step. It need not divide the heads: devices with the same KV head
        divide the rows of the cache. None is `tp`.
    """

    product_axes: ClassVar[tuple[str, ...]] = ("tp",)  # these divide the products of a row
    dp: int = -1
    fsdp: int | Literal["host"] = 1
    cp: int = 1
    tp: int = 1
    shape: str | Sequence[int] | Mapping[str, int] | None = None
    cpu_devices: int | None = None
    topology: str | None = None
    rollout_devices: int | None = None
    sampling_tp: Positive | None = None

    def __post_init__(self) -> None:
        shape = self.shape
        if isinstance(shape, Mapping):
            shape = ",".join(f"{axis}:{size}" for axis, size in shape.items())
        elif shape is not None and not isinstance(shape, str):
            shape = ",".join(map(str, shape))
        object.__setattr__(self, "shape", shape)  # a string, since a mesh must be hashable
        if shape is not None and self.cp != 1:  # dp, fsdp and tp may be those of a preset
            raise InputError(
                f"mesh.cp={self.cp} has no effect beside mesh.shape: write cp there, such as "
                f"mesh.shape={{fsdp:-1,cp:{self.cp}}}."
            )

    @cached_property
    def available(self) -> Sequence[Any]:
        """All available devices; the mesh takes as many as its axes need."""
        if (count := self.cpu_devices) is not None:
            if count == -1:  # Linux can restrict a process to some cores
                affinity = getattr(os, "sched_getaffinity", None)
                count = len(affinity(0)) if affinity else os.cpu_count() or 1
            try:
                jax.config.update("jax_num_cpu_devices", count)
            except (RuntimeError, ValueError) as error:  # JAX is in use, with another number
                raise InputError(f"mesh.cpu_devices={count} cannot be set: {error}") from error
        try:
            devices = jax.devices()
        except (AssertionError, RuntimeError) as error:  # without a GPU, an assertion of JAX fails
            if not (platforms := os.environ.get("JAX_PLATFORMS")):
                raise
            raise InputError(
                f"JAX_PLATFORMS={platforms}, but JAX finds no such device here (a GPU needs its "
                "driver and rl4p[cuda]): leave JAX_PLATFORMS out, or write JAX_PLATFORMS=cpu"
            ) from error
        if self.cpu_devices is not None and devices[0].platform != "cpu":
            raise InputError(
                f"mesh.cpu_devices={self.cpu_devices} divides a CPU, and JAX runs on "
                f"{devices[0].platform} here: leave it out, or set JAX_PLATFORMS=cpu."
            )
        if self.topology is not None:
            slice_of(self.topology).check([x.device_kind for x in devices], self.topology)
        return devices

    @cached_property
    def devices(self) -> jax.sharding.Mesh:
        apart, count = self.rollout_devices or 0, len(self.available)
        if not 0 <= apart < count:
            raise InputError(
                f"mesh.rollout_devices={apart} leaves no device for updates: there are {count}."
            )
        devices = self.available[: count - apart]
        local = sum(device.process_index == devices[0].process_index for device in devices)
        sizes = self.sizes(len(devices), local)
        return self.arranged(sizes, devices[: math.prod(sizes.values())])

    def arranged(self, sizes: Mapping[str, int], devices: Sequence[Any]) -> jax.sharding.Mesh:
        """Returns a mesh of these axes, in which JAX chooses the order of the devices."""
        shape, names, types = tuple(sizes.values()), tuple(sizes), (AUTO,) * len(sizes)
        try:
            return jax.make_mesh(shape, names, types, devices=devices)
        except NotImplementedError:  # it divides no dimension of the wiring between axes
            order = create_device_mesh(shape, devices, allow_split_physical_axes=True)
            return jax.sharding.Mesh(order, names, types)

    def sampling_mesh(self, heads: int, num_kv_heads: int) -> "Mesh":
        """Returns the mesh that samples: another one with `sampling_tp`, `rollout_devices` or `cp`.

        Its `tp` divides the KV heads. Its `fsdp` is the number of devices with the same KV heads.

        Raises:
          InputError: `sampling_tp` does not divide the devices that sample.
        """
        own, count = self.devices.shape["tp"], self.rollout_devices or self.size
        if count % (self.sampling_tp or 1):
            raise InputError(
                f"mesh.sampling_tp={self.sampling_tp} does not divide the {count} devices that "
                "sample."
            )
        tp = self.sampling_tp or own
        if not self.rollout_devices and tp == own and self.column_shards == 1:
            return self
        shards = math.gcd(tp, num_kv_heads)  # of the KV heads
        options = {"topology": self.topology, "training": self, "divides_heads": heads % tp == 0}
        return SamplingMesh(fsdp=tp // shards, tp=shards, **options)

    def key(self, seed: int) -> jax.Array:
        """Returns a random key, made after the check of the devices, which the first array uses."""
        _ = self.devices
        return jax.random.key(seed)

    def configured_sizes(self) -> dict[str, Any]:
        """Returns the sizes of all axes in the configuration, where -1 and `host` still stand."""
        if self.shape is not None:
            return sizes_of(str(self.shape))
        return {axis: getattr(self, axis) for axis in AXES}

    def sizes(self, devices: int, local: int) -> dict[str, int]:
        """Returns the sizes of the axes for `devices` devices, `local` of one process.

        `cp` is among them only if it is more than 1: a program without it does not depend on it.
        """
        axes = self.configured_sizes()
        host = max(1, local // math.prod(max(1, axes[axis]) for axis in ("cp", "tp")))
        sizes = [host if size == "host" else size for size in axes.values()]
        words = " ".join(f"mesh.{axis}={size}" for axis, size in axes.items() if size != 1)
        fixed = math.prod(size for size in sizes if size != -1)
        if min(sizes) < -1 or 0 in sizes or sizes.count(-1) > 1:
            raise InputError(
                f"{words} is not a valid shape: sizes are at least 1, and at most one is -1."
            )
        if fixed > devices or (-1 in sizes and devices % fixed):
            raise InputError(f"{words} needs {fixed} devices, but there are {devices}.")
        sizes = [devices // fixed if size == -1 else size for size in sizes]
        named = dict(zip(axes, sizes, strict=True))
        return {axis: size for axis, size in named.items() if axis != "cp" or size > 1}

    @property
    def size(self) -> int:
        return self.devices.size

    @property
    def row_shards(self) -> int:
        """The number of shards that the rows of a batch are divided into."""
        return self.devices.shape["dp"] * self.devices.shape["fsdp"]

    @property
    def devices_per_row(self) -> int:
        """The number of devices that divide the products of each row."""
        return math.prod(self.devices.shape[axis] for axis in self.product_axes)

    @property
    def column_shards(self) -> int:
        """The number of shards that the columns of a row are divided into."""
        return self.devices.shape.get("cp", 1)

    @property
    def param_axes(self) -> tuple[str, ...]:
        """The axes that divide parameters."""
        return tuple(axis for axis in self.devices.shape if axis != "dp")

    @property
    def head_axes(self) -> tuple[str, ...]:
        """The axes that divide query heads."""
        return self.product_axes

    @property
    def platform(self) -> str:
        """The platform of the devices: cpu, gpu or tpu."""
        return self.devices.devices.flat[0].platform

    @property
    def rows(self) -> NamedSharding:
        return NamedSharding(self.devices, PartitionSpec(ROW_AXES))

    @property
    def replicated(self) -> NamedSharding:
        return NamedSharding(self.devices, PartitionSpec())

    def shard_rows(self, tree: Any) -> Any:
        """Returns the arrays with their first axis sharded over `dp` and `fsdp`."""
        return place(tree, self.rows)

    def replicate(self, tree: Any) -> Any:
        return place(tree, self.replicated)

    def check_divides(self, dimensions: Mapping[str, int]) -> None:
        """Raises InputError unless the mesh divides a model's dimensions (`partition.RULES`)."""
        shape = self.devices.shape
        for name, size in dimensions.items():
            axis = RULES[name]
            with_cp = (axis == "fsdp" or name == "heads") and "cp" in shape
            keys = [axis, "cp"] if with_cp else [axis]
            parts = math.prod(shape[key] for key in keys)
            check_divisible(" x ".join(f"mesh.{key}" for key in keys), parts, name, size)

    def check_divides_sampling(self, dimensions: Mapping[str, int]) -> None:
        """Raises InputError unless `sampling_tp` divides a model's dimensions, except its heads."""
        for name, size in divided_by_sampling(dimensions).items():
            if self.sampling_tp:
                check_divisible("mesh.sampling_tp", self.sampling_tp, name, size)


@dataclass(frozen=True, kw_only=True)
class SamplingMesh(Mesh):
    """The mesh that samples: the last devices of another mesh, or all of them with another `tp`.

    `tp` divides heads, feed-forward (or experts) and vocabulary. So does `fsdp`, except KV heads:
    the devices along `fsdp` have the same KV heads, and each has its own rows of the cache.
    """

    product_axes: ClassVar = ("tp", "fsdp")
    training: Mesh
    # Whether `fsdp` divides the query heads too. If `tp` x `fsdp` does not divide their number, it
    # is false, and the devices along `fsdp` have the same query heads.
    divides_heads: bool

    @property
    def head_axes(self) -> tuple[str, ...]:
        return self.product_axes if self.divides_heads else ("tp",)

    @cached_property
    def available(self) -> Sequence[Any]:
        if apart := self.training.rollout_devices:
            return self.training.available[-apart:]
        return list(self.training.devices.devices.flat)

    def arranged(self, sizes: Mapping[str, int], devices: Sequence[Any]) -> jax.sharding.Mesh:
        if self.training.rollout_devices:
            return super().arranged(sizes, devices)
        # Both meshes have one order: a program takes arrays of one and returns arrays of the other.
        in_order = np.reshape(devices, tuple(sizes.values()))
        return jax.sharding.Mesh(in_order, tuple(sizes), (AUTO,) * len(sizes))


@dataclass(frozen=True, kw_only=True)
class OwnMesh(Mesh):
    """A mesh over the devices of this process alone."""

    @cached_property
    def available(self) -> Sequence[Any]:
        return jax.local_devices()


def sizes_of(shape: str) -> dict[str, int]:
    """Returns the axis sizes in "1,-1,1" (dp, fsdp, tp), "1,2,4,1" or "dp:2,fsdp:-1" (others 1)."""
    parts = [part.strip() for part in shape.split(",")]
    named = [part.partition(":")[::2] for part in parts]
    if all(":" not in part for part in parts) and len(parts) in (3, 4):
        axes = AXES if len(parts) == 4 else ("dp", "fsdp", "tp")
        named = list(zip(axes, parts, strict=True))
    try:
        sizes = {axis.strip(): int(size) for axis, size in named}
    except ValueError:
        sizes = {}
    if not sizes or len(sizes) < len(named) or not set(sizes) <= set(AXES):
        raise InputError(
            f"mesh.shape={shape} is not a valid shape: write three sizes, such as [1,-1,1] for dp, "
            "fsdp and tp, four for dp, fsdp, cp and tp, or named sizes, such as {dp:2,fsdp:-1}."
        )
    return dict.fromkeys(AXES, 1) | sizes


def divided_by_sampling(dimensions: Mapping[str, int]) -> dict[str, int]:
    """Returns the dimensions that `sampling_tp` must divide: all along `tp` but the heads."""
    along_tp = {name: size for name, size in dimensions.items() if RULES[name] == "tp"}
    return {name: size for name, size in along_tp.items() if not name.endswith("heads")}


def check_divisible(key: str, parts: int, name: str, size: int) -> None:
    """Checks that an axis of a mesh divides a dimension of a model."""
    if size % parts:
        fits = [n for n in range(1, size + 1) if size % n == 0]
        nearest = min(fits, key=lambda n: (abs(n - parts), n))
        raise InputError(
            f"{key}={parts} does not divide the model's {name}, which is {size}: the nearest that "
            f"does is {nearest}."
        )


ONE_DEVICE = Mesh(dp=1)
