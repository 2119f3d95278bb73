"""Rotary position embeddings (2104.09864) that rotate halves of a head, and their scaling."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.types import Array


@dataclass(frozen=True, kw_only=True)
class LinearScaling:
    """The scaling that divides positions by a factor (2306.15595)."""

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

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_max_positions: int

    def __call__(self, frequency: np.ndarray) -> np.ndarray:
        turns = self.original_max_positions * frequency / (2 * np.pi)
        low, high = self.low_frequency_factor, self.high_frequency_factor
        s = np.clip((turns - low) / (high - low), 0, 1)
        return (1 - s) * frequency / self.factor + s * frequency


Scaling = LinearScaling | Llama3Scaling


def rotations(
    positions_BT: Array, head_width: int, theta: float, scaling: Scaling | None
) -> tuple[jax.Array, jax.Array]:
    """Returns float32 cosines and sines [B, T, 1, h/2] of position x theta^(-2i/h)."""
    half = head_width // 2
    # Computed on the host in float64, because positions multiply the rounding error.
    frequency = theta ** (-np.arange(half) / half)
    frequency = frequency if scaling is None else scaling(frequency)
    frequency = jnp.asarray(frequency, jnp.float32)[None, None, None]
    angle = jnp.asarray(positions_BT, jnp.float32)[:, :, None, None] * frequency
    return jnp.cos(angle), jnp.sin(angle)


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """Rotates pairs of [B, T, heads, h], each with one element of either half of h."""
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(x.dtype)
