"""The chips that a mesh may name, and their slices, such as v5p_64.

A chip has its memory, rates and links, and the sizes of its slices.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rl4p.base.errors import InputError

GIB = 2**30
HOST = 8  # GPUs that are linked with one another


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A kind of device."""

    platform: str  # cpu, gpu or tpu
    kind: str  # a prefix of the `device_kind` that JAX reports
    # The size in bytes, of a TPU without what its programs cannot use; 0 if unknown.
    memory: float = 0
    flops: float = 0  # bfloat16 operations per second in matrix products; 0 if unknown
    bandwidth: float = 0  # memory bandwidth in bytes per second; 0 if unknown
    network: float = 0  # the bytes per second that it sends along one axis of a slice; 0 if unknown
    # The least seconds until a neighbour in a slice has what it sends; 0 if unknown.
    latency: float = 0
    wirings: Sequence[str] = ()  # the wirings of its slices, the smallest first
    devices: int = 1  # the number of JAX's devices in a chip; the other figures are of one device
    # The name of libtpu for the chip in a description of a slice that is not attached.
    described_as: str | None = None
    # More options of such a description.
    description: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def slices(self) -> dict[int, str]:
        """The wirings of its slices by their number of chips."""
        return {chips_in(wiring): wiring for wiring in self.wirings}


PLANES = "1x1 2x2 2x4 4x4 4x8 8x8 8x16 16x16"
CUBES = "2x2x1 2x2x2 2x2x4 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16"
NODES = "1 2 4 8 16 32 64 128 256 512"  # several nodes have 8 each
CARDS = "1 2 4 8"

# Sources: docs.cloud.google.com/tpu/docs/ v4, v5e, v5p, v6e and tpu7x (specifications and supported
# topologies). The bandwidth of all links there counts both directions; a ring along an axis sends
# over two of the four links in a plane, or of the six in a cube, in one direction each. A chip of
# tpu7x is two devices, each with half of its figures. A hop of about a microsecond is the figure of
# jax-ml.github.io/scaling-book/sharding. The memory is what libtpu gives to programs, as it says
# when it refuses one: a quarter to one and a quarter GiB less than the specification.
#   kind, memory in GiB, TFLOP/s, memory GB/s, network GB/s, wirings, libtpu's name
TPUS = {
    "v4": ("TPU v4", 30.75, 275, 1228, 100, CUBES, "v4"),
    "v5e": ("TPU v5 lite", 15.75, 197, 820, 100, PLANES, "v5e"),
    "v5p": ("TPU v5", 95.74, 459, 2765, 200, CUBES, "v5"),
    "v6e": ("TPU v6 lite", 31.25, 918, 1638, 200, PLANES, "v6e"),
    "tpu7x": ("TPU7x", 94.75, 1153.5, 3690, 100, CUBES, "tpu7x"),
}
# Sources: NVIDIA's data sheets of A100 SXM, L4, L40S, H100 SXM, H200 SXM and DGX B200, and the
# white papers of the Ada and Blackwell architectures for the RTX cards. Rates are of dense matrices
# with float32 sums. The network is NVLink in one direction, or PCIe.
#   kind, memory in GB (10^9 bytes), TFLOP/s, memory GB/s, network GB/s, sizes
GPUS = {
    "a100": ("NVIDIA A100", 80, 312, 2039, 300, NODES),
    "a100_40gb": ("NVIDIA A100-SXM4-40GB", 40, 312, 1555, 300, NODES),
    "l4": ("NVIDIA L4", 24, 121, 300, 32, CARDS),
    "l40s": ("NVIDIA L40S", 48, 362, 864, 32, CARDS),
    "rtx4080": ("NVIDIA GeForce RTX 4080", 16, 97.5, 717, 32, CARDS),
    "rtx4090": ("NVIDIA GeForce RTX 4090", 24, 165.2, 1008, 32, CARDS),
    "rtx5090": ("NVIDIA GeForce RTX 5090", 32, 209.5, 1792, 64, CARDS),
    "h100": ("NVIDIA H100", 80, 989, 3350, 450, NODES),
    "h200": ("NVIDIA H200", 141, 989, 4800, 450, NODES),
    "b200": ("NVIDIA B200", 180, 2250, 8000, 900, NODES),
}


def of_row(platform: str, unit: float, row: Sequence[Any], **more: Any) -> Chip:
    """Returns the chip of a row of the tables above."""
    kind, memory, tera, giga, network, wirings, *name = row
    return Chip(
        platform=platform,
        kind=kind,
        memory=memory * unit,
        flops=tera * 1e12,
        bandwidth=giga * 1e9,
        network=network * 1e9,
        wirings=tuple(wirings.split()),
        described_as=name[0] if name else None,
        **more,
    )


MORE: dict[str, dict[str, Any]] = {
    "v4": {"description": {"chip_config_name": "megacore"}},
    "tpu7x": {"devices": 2},
}
CHIPS = {
    **{
        name: of_row("tpu", GIB, row, latency=1e-6, **MORE.get(name, {}))
        for name, row in TPUS.items()
    },
    **{name: of_row("gpu", 1e9, row) for name, row in GPUS.items()},
}


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A number of chips of one kind, given by their wiring."""

    chip: Chip
    wiring: str  # such as 4x4

    @property
    def count(self) -> int:
        """The number of JAX's devices."""
        return chips_in(self.wiring) * self.chip.devices

    def check(self, kinds: list[str], topology: str) -> None:
        """Checks that the devices have the kind and the number of this slice."""
        kind = kinds[0]
        if chip_of(kind) is not self.chip or len(kinds) != self.count:
            raise InputError(
                f"mesh.topology={topology} needs {self.count} devices of kind {self.chip.kind}, "
                f"but this run has {len(kinds)} of kind {kind}."
            )


def least_hops(group: Sequence[int], topology: str | None) -> int:
    """Returns the least hops between the two devices of a group that are farthest apart.

    It is the diameter of the smallest box that the group may form in the wiring of its slice, whose
    links connect in a ring along each dimension; three dimensions if the wiring is not known.
    """
    wiring = "2x2x2" if topology is None else slice_of(topology).wiring
    dimensions = max(1, sum(int(size) > 1 for size in wiring.split("x")))

    def diameter(count: int, dimensions: int) -> int:
        if dimensions == 1:
            return count // 2
        sides = (side for side in range(1, count + 1) if count % side == 0)
        return min(side // 2 + diameter(count // side, dimensions - 1) for side in sides)

    return diameter(len(group), dimensions)


def chips_in(wiring: str) -> int:
    return math.prod(int(n) for n in wiring.split("x"))


def slice_of(topology: str) -> Slice:
    """Returns the slice that a topology such as v5e:4x4 stands for."""
    name, _, wiring = topology.partition(":")
    if name not in CHIPS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", wiring):
        raise InputError(
            f"mesh.topology={topology} must have the form CHIP:WIRING (v5e:4x4); chips are "
            f"{', '.join(CHIPS)}."
        )
    return Slice(chip=CHIPS[name], wiring=wiring)


def topology_of(name: str) -> str | None:
    """Returns the topology of a slice's name, CHIP_COUNT; None if there is no such slice.

    For example, v5p_64 is v5p:4x4x4. The count is of chips (Google's own names of v4 and v5p count
    TensorCores, two in a chip).
    """
    chip, _, count = name.rpartition("_")
    if chip not in CHIPS or not re.fullmatch(r"[1-9]\d*", count):
        return None
    wiring = CHIPS[chip].slices.get(int(count))
    return None if wiring is None else f"{chip}:{wiring}"


def slice_names() -> list[str]:
    """Returns the names of all known slices of chips, such as v5p_64."""
    return [f"{name}_{count}" for name, chip in CHIPS.items() for count in chip.slices]


def chip_of(kind: str) -> Chip | None:
    """Returns the chip of a `device_kind`, or None if the table does not have it."""
    matching = [
        chip
        for chip in CHIPS.values()
        if re.match(rf"{re.escape(chip.kind)}(?!\d)", kind)  # an L40 is no L4
    ]
    return max(matching, key=lambda chip: len(chip.kind), default=None)  # v5 also fits v5 lite


def unknown_slice(name: str) -> InputError | None:
    """Returns the error for a slice that does not exist; None if the name is not of a chip."""
    chip, count = (name, "0") if name in CHIPS else name.rpartition("_")[::2]
    if chip not in CHIPS or not count.isdigit():
        return None
    sizes = list(CHIPS[chip].slices)
    near = min(sizes, key=lambda size: abs(size - int(count)))
    return InputError(
        f"mesh={name} does not exist: slices of {chip} have {', '.join(map(str, sizes))} chips; "
        f"did you mean mesh={chip}_{near}?"
    )


def refuse_sizes_beside_a_shape(config: DictConfig, given: Mapping[str, Any]) -> None:
    """Checks that the command line gives no size of an axis that `mesh.shape` replaces.

    The sizes of a preset, such as mesh=v5p_8, are replaced without a word.
    """
    shape = OmegaConf.select(config, "mesh.shape", default=None)
    for key in ("mesh.dp", "mesh.fsdp", "mesh.tp"):
        if shape is not None and key in given:
            raise InputError(
                f"{key} has no effect beside mesh.shape={shape}: give all sizes there, or add "
                "mesh.shape=null."
            )
