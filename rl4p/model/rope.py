"""Rotary position embeddings (2104.09864) and their scaling."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.types import Array


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """The scaling that divides positions by a factor (2306.15595)."""

    magnitude: ClassVar[float] = 1.0
    factor: float

    def __call__(self, frequency: np.ndarray) -> np.ndarray:
        return frequency / self.factor


@dataclass(frozen=True, kw_only=True)
class Llama3Scaling:
    """The scaling of Llama 3.1: stretches long waves, keeps short ones, and blends in between.

    With n = original_max_positions / wavelength, the number of periods in the original context,
    and s = clip((n - low) / (high - low), 0, 1):

        frequency' = (1 - s) frequency / factor + s frequency

    Source: `apply_scaling` in github.com/meta-llama/llama-models.
    """

    magnitude: ClassVar[float] = 1.0
    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_max_positions: int

    def __call__(self, frequency: np.ndarray) -> np.ndarray:
        turns = self.original_max_positions * frequency / (2 * np.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        # Equal in Llama 4, which blends nothing.
        s = np.clip((turns - low) / (high - low), 0, 1) if high != low else turns >= low
        return (1 - s) * frequency / self.factor + s * frequency


@dataclass(frozen=True, kw_only=True)
class DynamicScaling:
    """The scaling that raises the base for sequences longer than the model's positions.

    rl4p refuses such sequences, and the scaling changes no other.
    """

    magnitude: ClassVar[float] = 1.0
    factor: float

    def __call__(self, frequency: np.ndarray) -> np.ndarray:
        return frequency


@dataclass(frozen=True, kw_only=True)
class YarnScaling:
    """The scaling of YaRN (2309.00071): as Llama 3.1, with a ramp over the index of a frequency.

    Frequency i makes original_max_positions * frequency_i / (2 pi) turns. With the indices
    `first` and `last` at which it makes `fast_turns` and `slow_turns`:

        s = clip((i - first) / (last - first), 0, 1)
        frequency' = s frequency / factor + (1 - s) frequency

    Attributes:
      truncated: whether `first` is rounded down and `last` up.
      magnitude: the factor of the rotated queries and keys.
    """

    factor: float
    original_max_positions: int
    fast_turns: float = 32.0
    slow_turns: float = 1.0
    truncated: bool = True
    magnitude: float = 1.0

    def __call__(self, frequency: np.ndarray) -> np.ndarray:
        step = -np.log(frequency[-1]) / max(1, len(frequency) - 1)
        first, last = (
            math.log(self.original_max_positions / (2 * math.pi * turns)) / step
            for turns in (self.fast_turns, self.slow_turns)
        )
        if self.truncated:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, 2 * len(frequency) - 1)
        width = last - first or 0.001  # as transformers does
        s = np.clip((np.arange(len(frequency)) - first) / width, 0, 1)
        return s * frequency / self.factor + (1 - s) * frequency


@dataclass(frozen=True, kw_only=True)
class LongScaling:
    """The scaling of LongRoPE (2402.13753), which divides each frequency by a factor of its own.

    There are other factors for sequences longer than `original_max_positions`. A sampler does not
    know how long a sequence becomes, so rl4p refuses these, and only exports their factors.

    Attributes:
      factors, long_factors: a factor for each frequency.
      max_positions: the number of positions with the long factors.
      magnitude: the factor of the rotated queries and keys.
    """

    factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_max_positions: int
    max_positions: int
    magnitude: float

    def __call__(self, frequency: np.ndarray) -> np.ndarray:
        return frequency / np.array(self.factors)


@dataclass(frozen=True, kw_only=True)
class ProportionalScaling:
    """The scaling of Gemma 4: only the pairs with the highest frequencies are rotated.

    Attributes:
      part: the part of all elements that is rotated.
      factor: what positions are divided by.
    """

    magnitude: ClassVar[float] = 1.0
    part: float
    factor: float = 1.0

    def __call__(self, frequency: np.ndarray) -> np.ndarray:
        rotated = int(self.part * 2 * len(frequency) // 2)
        return np.where(np.arange(len(frequency)) < rotated, frequency / self.factor, 0.0)


Scaling = (
    LinearScaling | Llama3Scaling | DynamicScaling | YarnScaling | LongScaling | ProportionalScaling
)


def rotations(
    positions_BT: Array, width: int, theta: float, scaling: Scaling | None
) -> tuple[jax.Array, jax.Array]:
    """Returns float32 cosines and sines [B, T, 1, w/2] of position x theta^(-2i/w), for width w."""
    half = width // 2
    # Computed on the host in float64, because positions multiply the rounding error.
    frequency = theta ** (-np.arange(half) / half)
    frequency = frequency if scaling is None else scaling(frequency)
    frequency = jnp.asarray(frequency, jnp.float32)[None, None, None]
    angle = jnp.asarray(positions_BT, jnp.float32)[:, :, None, None] * frequency
    cos, sin = jnp.cos(angle), jnp.sin(angle)
    if scaling is None or scaling.magnitude == 1:
        return cos, sin
    return cos * scaling.magnitude, sin * scaling.magnitude


def rotate(x: Array, cos: Array, sin: Array, *, interleaved: bool = False) -> Array:
    """Rotates pairs of the first w elements of each head of [B, T, heads, h].

    A pair has one element of either half of w or, if `interleaved` is set, two neighbours.
    """
    width = 2 * cos.shape[-1]
    if width < x.shape[-1]:
        rotated = rotate(x[..., :width], cos, sin, interleaved=interleaved)
        return jnp.concatenate([rotated, x[..., width:]], axis=-1)
    x32 = x.astype(jnp.float32)
    if interleaved:
        first, second = x32[..., ::2], x32[..., 1::2]
        pairs = first * cos - second * sin, second * cos + first * sin
        return jnp.stack(pairs, axis=-1).reshape(x.shape).astype(x.dtype)
    first, second = jnp.split(x32, 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)
