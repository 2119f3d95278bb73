"""The devices of a run, and how arrays lie on them."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import jax
from jax.sharding import NamedSharding, PartitionSpec

from rl4p.configuration.bounds import Natural, Positive
from rl4p.distributed.chips import slice_of
from rl4p.distributed.partition import RULES, as_sampled, changed_for_sampling, specs, specs_beside
from rl4p.distributed.processes import place
from rl4p.errors import InputError
from rl4p.types import Array, Params

AXES = ("dp", "fsdp", "tp")


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Devices along three axes: rows are split over `dp` and `fsdp`, parameters over `fsdp`, `tp`.

    Attributes:
      dp: devices that have rows of their own, and their gradients in common; -1 takes what there
        is.
      fsdp: devices that have rows of their own, and each a part of the parameters, gathered layer
        by layer; -1 takes what there is, `host` those of one process.
      tp: devices that share each row: heads, feed-forward and vocabulary are divided among them.
      shape: the three in one and in their place: [1,-1,1], {dp:2,fsdp:-1}, or as words "1,-1,1",
        "dp:2,fsdp:-1" (which on a command line are quoted twice: a bare comma is a sweep there).
      cpu_devices: how many a CPU is divided into, -1 being one for each core; None leaves it to
        JAX, for which a CPU is one device. Its cores share the work of large products well, and
        that of decoding hardly at all; but every device holds all parameters.
      topology: the chips that there have to be, as v5e:4x4 (`chips.py`), which `rl4p.plan` compiles
        for without having them; None is whatever there is.
      rollout_devices: so many, the last ones, only sample, and the axes above divide the others;
        each has all parameters, or its part along `tp`. None: all devices do both.
      coordinator, processes, process: host:port that process 0 listens at, how many there are, and
        which this is; None for one alone. `processes` is auto where a cluster says all three.
      initialization_timeout: seconds for all of them to come.
    """

    dp: int = -1
    fsdp: int | Literal["host"] = 1
    tp: int = 1
    shape: str | Sequence[int] | Mapping[str, int] | None = None
    cpu_devices: int | None = None
    topology: str | None = None
    rollout_devices: int | None = None
    coordinator: str | None = None
    processes: Positive | Literal["auto"] | None = None
    process: Natural | None = None
    initialization_timeout: Positive = 120

    def __post_init__(self) -> None:
        shape = self.shape
        if isinstance(shape, Mapping):
            shape = ",".join(f"{axis}:{size}" for axis, size in shape.items())
        elif shape is not None and not isinstance(shape, str):
            shape = ",".join(map(str, shape))
        object.__setattr__(self, "shape", shape)  # a mesh is hashed

    @cached_property
    def there(self) -> Sequence[Any]:
        """All devices, of which the mesh takes as many as its axes ask for."""
        if self.cpu_devices is not None:
            divide_cpu(usable_cores() if self.cpu_devices == -1 else self.cpu_devices)
        devices = jax.devices()
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
        apart, there = self.rollout_devices or 0, len(self.there)
        if not 0 <= apart < there:
            raise InputError(
                f"mesh.rollout_devices={apart} leaves none of {there} devices for updates."
            )
        devices = self.there[: there - apart]
        local = sum(device.process_index == devices[0].process_index for device in devices)
        sizes = self.sizes(len(devices), local)
        auto = (jax.sharding.AxisType.Auto,) * len(AXES)
        return jax.make_mesh(sizes, AXES, auto, devices=devices[: math.prod(sizes)])

    @cached_property
    def sampling(self) -> "Mesh":
        """The devices that sample: these, unless some do nothing else."""
        if not self.rollout_devices:
            return self
        return RolloutMesh(tp=self.devices.shape["tp"], of=self)

    def sizes(self, devices: int, local: int) -> tuple[int, ...]:
        """Of the three axes, among so many devices, so many of which are of one process.

        Raises:
          InputError: they do not make up that many.
        """
        asked: dict[str, Any] = {"dp": self.dp, "fsdp": self.fsdp, "tp": self.tp}
        if self.shape is not None:
            asked = sizes_of(str(self.shape))
        sizes = [local if size == "host" else size for size in asked.values()]
        words = " ".join(f"mesh.{axis}={size}" for axis, size in asked.items() if size != 1)
        fixed = math.prod(size for size in sizes if size != -1)
        if min(sizes) < -1 or 0 in sizes or sizes.count(-1) > 1:
            raise InputError(
                f"{words} is no shape: sizes are at least 1, and one of them may be -1."
            )
        if fixed > devices or (-1 in sizes and devices % fixed):
            raise InputError(f"{words} asks for {fixed} devices, but there are {devices}.")
        return tuple(devices // fixed if size == -1 else size for size in sizes)

    @property
    def size(self) -> int:
        return self.devices.size

    @property
    def row_shards(self) -> int:
        """How many parts the rows of a batch are in."""
        return self.devices.shape["dp"] * self.devices.shape["fsdp"]

    @property
    def row_multiple(self) -> int:
        """What numbers of rows divide by, here and where they are sampled."""
        return math.lcm(self.row_shards, self.sampling.row_shards)

    @property
    def platform(self) -> str:
        """cpu, gpu or tpu."""
        return self.devices.devices.flat[0].platform

    @property
    def rows(self) -> NamedSharding:
        return NamedSharding(self.devices, ROWS)

    @property
    def rows_and_heads(self) -> NamedSharding:
        """Of arrays [B, K, ...], such as a cache's keys."""
        return NamedSharding(self.devices, PartitionSpec(("dp", "fsdp"), "tp"))

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.devices, PartitionSpec())

    def shard_rows(self, tree: Any) -> Any:
        """Arrays with their first axis split over the devices."""
        return place(tree, self.rows)

    def replicate(self, tree: Any) -> Any:
        return place(tree, self.everywhere)

    def check_divides(self, dimensions: Mapping[str, int]) -> None:
        """Those of a model, by the names of `partition.RULES`.

        Raises:
          InputError: an axis of the mesh does not divide one that lies along it.
        """
        for name, size in dimensions.items():
            axis = RULES[name]
            parts = self.devices.shape[axis]
            if size % parts:
                fits = [n for n in range(1, size + 1) if size % n == 0]
                nearest = min(fits, key=lambda n: (abs(n - parts), n))
                raise InputError(
                    f"mesh.{axis}={parts} does not divide the model's {name}, which is {size}: "
                    f"the nearest that does is {nearest}."
                )

    # Parameters, and what stands beside each.

    def of_params(self, params: Params) -> Any:
        """How they lie (`partition.py`), as shardings: of arrays, or of their shapes."""
        return jax.tree.map(partial(NamedSharding, self.devices), specs(params))

    def of_optimizer_state(self, state: Any, params: Params) -> Any:
        return jax.tree.map(partial(NamedSharding, self.devices), specs_beside(state, params))

    def init(self, init: Callable[..., Params], *arguments: Any) -> Params:
        """Fresh parameters, of which each device makes its part."""
        shardings = self.of_params(jax.eval_shape(init, *arguments))
        return jax.jit(init, out_shardings=shardings)(*arguments)

    def shapes(self, init: Callable[..., Params], *arguments: Any) -> Params:
        """Of what `init` would make, with their places."""
        shapes = jax.eval_shape(init, *arguments)
        return with_places(shapes, self.of_params(shapes))

    def init_beside(self, init: Callable[[Params], Any], params: Params) -> Any:
        """The state of an optimizer, each part beside its parameter."""
        shardings = self.of_optimizer_state(jax.eval_shape(init, params), params)
        return jax.jit(init, out_shardings=shardings)(params)

    def for_sampling(self, params: Params, dtype: str) -> Params:
        """On the devices that sample, whole or divided along `tp`: each token reads them all.

        Args:
          dtype: of activations.
        """
        changed = changed_for_sampling(params, dtype)
        params = params | as_sampled({name: params[name] for name in changed}, dtype)
        if self.sampling is self and self.devices.shape["fsdp"] == 1:
            return params
        return place(params, self.of_sampling(params))

    def of_sampling(self, params: Params) -> Any:
        """How they lie for that, as shardings."""
        there = partial(NamedSharding, self.sampling.devices)
        return jax.tree.map(there, specs(params, ("tp",)))

    # Within a compiled function.

    def keep(self, params: Params, optimizer_state: Any) -> tuple[Params, Any]:
        """As they lie, where the compiler would otherwise choose."""
        if self.size == 1:
            return params, optimizer_state
        return jax.lax.with_sharding_constraint(
            (params, optimizer_state),
            (self.of_params(params), self.of_optimizer_state(optimizer_state, params)),
        )

    def gather_rows(self, tree: Any) -> Any:
        """Arrays with all their rows on each device; their other axes as they lie."""
        if self.row_shards == 1:
            return tree

        def of(x: Array) -> Array:
            others = (PartitionSpec.UNCONSTRAINED,) * (x.ndim - 1)
            place = NamedSharding(self.devices, PartitionSpec(None, *others))
            return jax.lax.with_sharding_constraint(x, place)

        return jax.tree.map(of, tree)

    def on_rows(
        self, function: Callable[[Any, Any], Any], shared: Any, rows: Any, *, results: Any
    ) -> Any:
        """function(shared, rows), called on each device with its part of the rows.

        Devices wait for one another only where the function has them add up (`total`, `largest`)
        or gather parameters (`partition.gather`). Along `tp` the compiler divides the work.

        Args:
          shared: parameters, of which each device has its part, and numbers.
          results: the place of what the function returns: `ROWS`, `EVERYWHERE`, or
            `parts(params)`.
        """
        if self.row_shards == 1:
            return function(shared, rows)
        axes = {"dp", "fsdp"} if self.devices.shape["tp"] > 1 else set(AXES)
        return jax.shard_map(
            function,
            mesh=self.devices,
            in_specs=(specs(shared, ("fsdp",)), ROWS),
            out_specs=results,
            axis_names=axes,
            check_vma=False,
        )(shared, rows)

    def parts(self, params: Params) -> Any:
        """The place of what is divided as parameters are."""
        return specs(params, ("fsdp",))

    def of_rows(self, *but: str) -> tuple[str, ...]:
        """The axes that rows are split over, but those along which there is one device."""
        sizes = self.devices.shape
        return tuple(axis for axis in ("dp", "fsdp") if sizes[axis] > 1 and axis not in but)

    def total(self, tree: Any) -> Any:
        return jax.lax.psum(tree, axes) if (axes := self.of_rows()) else tree

    def total_gradient(self, gradient: Params) -> Params:
        """What was gathered has been added up along `fsdp` already."""

        def of(place: PartitionSpec, x: Array) -> Array:
            axes = self.of_rows("fsdp") if "fsdp" in place else self.of_rows()
            return jax.lax.psum(x, axes) if axes else x

        return jax.tree.map(of, self.parts(gradient), gradient)

    def largest(self, tree: Any) -> Any:
        return jax.lax.pmax(tree, axes) if (axes := self.of_rows()) else tree


@dataclass(frozen=True, kw_only=True)
class RolloutMesh(Mesh):
    """The last devices of another mesh, which only sample."""

    of: Mesh

    @cached_property
    def there(self) -> Sequence[Any]:
        return self.of.there[-(self.of.rollout_devices or 0) :]


@dataclass(frozen=True, kw_only=True)
class OwnMesh(Mesh):
    """The devices of this process alone, for what it does by itself."""

    @cached_property
    def there(self) -> Sequence[Any]:
        return jax.local_devices()


def with_places(shapes: Any, shardings: Any) -> Any:
    """Arrays, or their shapes, as shapes that lie so."""
    return jax.tree.map(
        lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), shapes, shardings
    )


ROWS, EVERYWHERE = PartitionSpec(("dp", "fsdp")), PartitionSpec()


def sizes_of(shape: str) -> dict[str, int]:
    """Of the axes: "1,-1,1" is dp, fsdp, tp; "dp:2,fsdp:-1" names them, and the rest are 1.

    Raises:
      InputError: it is neither.
    """
    parts = [part.strip() for part in shape.split(",")]
    named = [part.partition(":")[::2] for part in parts]
    if all(":" not in part for part in parts) and len(parts) == len(AXES):
        named = list(zip(AXES, parts, strict=True))
    try:
        sizes = {axis.strip(): int(size) for axis, size in named}
    except ValueError:
        sizes = {}
    if not sizes or len(sizes) < len(named) or not set(sizes) <= set(AXES):
        raise InputError(
            f"mesh.shape={shape} is no shape of a mesh: it is three numbers, as [1,-1,1] for "
            "dp, fsdp and tp, or named ones, as {dp:2,fsdp:-1}."
        )
    return dict.fromkeys(AXES, 1) | sizes


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # Linux, where a process may be held to some of them
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def divide_cpu(devices: int) -> None:
    """Only before JAX is first used, or to what it is already."""
    try:
        jax.config.update("jax_num_cpu_devices", devices)
    except (RuntimeError, ValueError) as error:
        raise InputError(f"mesh.cpu_devices={devices} cannot be: {error}") from error


ONE_DEVICE = Mesh(dp=1)
