"""The devices of a run, and how arrays lie on them."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from rl4p.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """Data parallelism: rows of a batch are split over the axis `dp`, parameters are everywhere.

    Attributes:
      dp: devices along the axis; -1 takes all that the process sees.
      cpu_devices: how many a CPU is divided into, -1 being one for each core; None leaves it to
        JAX, for which a CPU is one device. Its cores share the work of large products well, and
        that of decoding hardly at all; but every device holds all parameters.
    """

    dp: int = -1
    cpu_devices: int | None = None

    @cached_property
    def devices(self) -> jax.sharding.Mesh:
        if self.cpu_devices is not None:
            divide_cpu(usable_cores() if self.cpu_devices == -1 else self.cpu_devices)
        count = jax.device_count()
        dp = count if self.dp == -1 else self.dp
        if not 1 <= dp <= count:
            raise InputError(f"mesh.dp={self.dp} asks for {dp} devices, but there are {count}.")
        return jax.make_mesh(
            (dp,), ("dp",), (jax.sharding.AxisType.Auto,), devices=jax.devices()[:dp]
        )

    @property
    def size(self) -> int:
        return self.devices.size

    @property
    def platform(self) -> str:
        """cpu, gpu or tpu."""
        return self.devices.devices.flat[0].platform

    @property
    def rows(self) -> NamedSharding:
        return NamedSharding(self.devices, PartitionSpec("dp"))

    @property
    def everywhere(self) -> NamedSharding:
        return NamedSharding(self.devices, PartitionSpec())

    def shard_rows(self, tree: Any) -> Any:
        """Arrays with their first axis split over the devices."""
        return jax.device_put(tree, self.rows)

    def replicate(self, tree: Any) -> Any:
        return jax.device_put(tree, self.everywhere)

    # Within a compiled function.

    def keep_everywhere(self, tree: Any) -> Any:
        """Where the compiler would otherwise choose."""
        return tree if self.size == 1 else jax.lax.with_sharding_constraint(tree, self.everywhere)

    def on_rows(
        self, function: Callable[[Any, Any], Any], shared: Any, rows: Any, *, of_rows: bool
    ) -> Any:
        """function(shared, rows), called on each device with its part of the rows.

        Devices wait for one another only where the function has them add up (`total`, `largest`).

        Args:
          of_rows: whether the result is of the device's rows, or the same on all devices.
        """
        if self.size == 1:
            return function(shared, rows)
        placed = PartitionSpec("dp")
        return jax.shard_map(
            function,
            mesh=self.devices,
            in_specs=(PartitionSpec(), placed),
            out_specs=placed if of_rows else PartitionSpec(),
            check_vma=False,
        )(shared, rows)

    def total(self, tree: Any) -> Any:
        return tree if self.size == 1 else jax.lax.psum(tree, "dp")

    def largest(self, tree: Any) -> Any:
        return tree if self.size == 1 else jax.lax.pmax(tree, "dp")


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
