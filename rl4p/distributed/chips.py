"""The chips that `mesh.topology` may name: their names in JAX, memory and rates."""

import math
import re
from dataclasses import dataclass

from rl4p.errors import InputError

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Chip:
    """A kind of device.

    Attributes:
      platform: cpu, gpu or tpu.
      kind: a prefix of the `device_kind` that JAX reports.
      memory: the size in bytes; 0 if unknown.
      flops: bfloat16 operations per second in matrix products; 0 if unknown.
      bandwidth: memory bandwidth in bytes per second; 0 if unknown.
      described_as: libtpu's name for the chip in a description of a slice that is not attached.
    """

    platform: str
    kind: str
    memory: float = 0
    flops: float = 0
    bandwidth: float = 0
    described_as: str | None = None


# Figures from the vendors.
CHIPS = {
    "v5e": Chip(
        platform="tpu",
        kind="TPU v5 lite",
        memory=16 * GIB,
        flops=197e12,
        bandwidth=0.82e12,
        described_as="v5e",
    ),
    "v5p": Chip(
        platform="tpu",
        kind="TPU v5",
        memory=95 * GIB,
        flops=459e12,
        bandwidth=2.77e12,
        described_as="v5",
    ),
    "v6e": Chip(
        platform="tpu",
        kind="TPU v6 lite",
        memory=32 * GIB,
        flops=918e12,
        bandwidth=1.64e12,
        described_as="v6e",
    ),
    "h200": Chip(platform="gpu", kind="NVIDIA H200", memory=141e9, flops=989e12, bandwidth=4.8e12),
    "h100": Chip(platform="gpu", kind="NVIDIA H100", memory=80e9, flops=989e12, bandwidth=3.35e12),
}


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A number of chips of one kind, given by their wiring."""

    chip: Chip
    wiring: str  # such as 4x4

    @property
    def count(self) -> int:
        return math.prod(int(n) for n in self.wiring.split("x"))

    def check(self, kinds: list[str], topology: str) -> None:
        """Checks that the devices have the kind and the number of this slice.

        Raises:
          InputError: the kind or the number differs.
        """
        kind = kinds[0]
        if chip_of(kind) is not self.chip or len(kinds) != self.count:
            raise InputError(
                f"mesh.topology={topology} needs {self.count} chips of kind {self.chip.kind}, but "
                f"this run has {len(kinds)} of kind {kind}."
            )


def slice_of(topology: str) -> Slice:
    """Returns the slice that a name such as v5e:4x4 stands for.

    Raises:
      InputError: the chip is unknown, or the wiring is not numbers joined by x.
    """
    name, _, wiring = topology.partition(":")
    if name not in CHIPS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", wiring):
        raise InputError(
            f"mesh.topology={topology} must have the form CHIP:WIRING (v5e:4x4); chips are "
            f"{', '.join(CHIPS)}."
        )
    return Slice(chip=CHIPS[name], wiring=wiring)


def chip_of(kind: str) -> Chip | None:
    """Returns the chip of a `device_kind`, or None if the table does not have it."""
    matching = [chip for chip in CHIPS.values() if kind.startswith(chip.kind)]
    return max(matching, key=lambda chip: len(chip.kind), default=None)  # v5 also fits v5 lite
