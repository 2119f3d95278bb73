"""Chips that a mesh may name: what JAX calls them, their memory and their rates."""

import math
import re
from dataclasses import dataclass

from rl4p.errors import InputError

GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Chip:
    """One device.

    Attributes:
      platform: cpu, gpu or tpu.
      kind: what its `device_kind` begins with.
      memory: bytes; of a CPU not known beforehand, 0.
      flops: of bfloat16 products, in a second; 0 is not known.
      bandwidth: bytes of its memory, in a second; 0 is not known.
      described_as: what libtpu calls it when it describes slices without having them.
    """

    platform: str
    kind: str
    memory: float = 0
    flops: float = 0
    bandwidth: float = 0
    described_as: str | None = None


# The vendors' figures.
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
    """So many chips of one kind, by how they are wired."""

    chip: Chip
    wiring: str  # 4x4

    @property
    def count(self) -> int:
        return math.prod(int(n) for n in self.wiring.split("x"))

    def check(self, kinds: list[str], topology: str) -> None:
        """Refuses devices of other kinds, or of another number.

        Raises:
          InputError: they are not this slice.
        """
        kind = kinds[0]
        if chip_of(kind) is not self.chip or len(kinds) != self.count:
            raise InputError(
                f"mesh.topology={topology} is {self.count} chips of the kind {self.chip.kind}, but "
                f"there are {len(kinds)} of the kind {kind}."
            )


def slice_of(topology: str) -> Slice:
    """Of a name such as v5e:4x4.

    Raises:
      InputError: there is no such chip, or no such wiring.
    """
    name, _, wiring = topology.partition(":")
    if name not in CHIPS or not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", wiring):
        raise InputError(
            f"mesh.topology={topology} is not CHIP:WIRING, as v5e:4x4; chips are "
            f"{', '.join(CHIPS)}."
        )
    return Slice(chip=CHIPS[name], wiring=wiring)


def chip_of(kind: str) -> Chip | None:
    """The chip of a `device_kind`; None if the table has none."""
    found = [chip for chip in CHIPS.values() if kind.startswith(chip.kind)]
    return max(found, key=lambda chip: len(chip.kind), default=None)  # v5 lite is no v5
