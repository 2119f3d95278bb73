"""The matrices A and B of an adapter, and tensors of its base that they change when it is read."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from rl4p.model.tensor_files import StoredTensor

Change = Callable[[slice], np.ndarray]  # from rows of a tensor to what is added to them


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """The matrices of a module, which are read once and then held in float32.

    Attributes:
      a, b: A [rank, in] and B [out, rank]; of an embedding, both transposed in the files.
      bias: the bias [out] that is scaled as B is, if there is one.
    """

    a: StoredTensor
    b: StoredTensor
    bias: StoredTensor | None = None
    transposed: bool = False

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shapes of A and B."""
        a, b = self.a.shape, self.b.shape
        return (a[::-1], b[::-1]) if self.transposed else (a, b)

    @property
    def fits(self) -> bool:
        """Whether A and B can be multiplied."""
        a, b = self.shapes
        bias = self.bias is None or self.bias.shape == b[:1]
        return bias and len(a) == len(b) == 2 and b[1] == a[0] > 0

    @property
    def rank(self) -> int:
        return self.shapes[0][0]

    @property
    def shape(self) -> tuple[int, int]:
        """The shape [out, in] of B A."""
        return self.shapes[1][0], self.shapes[0][1]

    @cached_property
    def matrices(self) -> tuple[np.ndarray, np.ndarray]:
        """A and B."""
        a, b = (whole(tensor).astype(np.float32) for tensor in (self.a, self.b))
        return (a.T, b.T) if self.transposed else (a, b)

    def product(self, rows: slice, *, scale: float) -> np.ndarray:
        """Returns rows of s B A."""
        a, b = self.matrices
        return np.float32(scale) * (b[rows] @ a)

    def bias_rows(self, rows: slice, *, scale: float) -> np.ndarray:
        """Returns rows of the scaled bias."""
        assert self.bias is not None
        return np.float32(scale) * whole(self.bias).astype(np.float32)[rows]

    def __str__(self) -> str:
        return f"A {list(self.shapes[0])} and B {list(self.shapes[1])}"


def whole(tensor: StoredTensor) -> np.ndarray:
    """Reads a tensor in its own dtype."""
    return np.concatenate([piece for _, piece in tensor.pieces(slice(0, tensor.shape[0]))])


@dataclass(frozen=True, kw_only=True)
class ChangedTensor(StoredTensor):
    """A tensor of the base to which an adapter adds something, in float32."""

    base: StoredTensor
    change: Change

    @classmethod
    def of(cls, base: StoredTensor, change: Change) -> Self:
        return cls(
            file=base.file,
            kind=base.kind,
            shape=base.shape,
            start=base.start,
            bytes=base.bytes,
            base=base,
            change=change,
        )

    def pieces(self, rows: slice) -> Iterator[tuple[int, np.ndarray]]:
        """Yields the changed rows in pieces, each with the index of its first row."""
        for first, piece in self.base.pieces(rows):
            changed = piece.astype(np.float32)
            changed += self.change(slice(first, first + len(piece)))
            yield first, changed
