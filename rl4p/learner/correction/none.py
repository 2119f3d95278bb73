"""No correction."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from rl4p.base.types import Array


@dataclass(frozen=True, kw_only=True)
class NONE:
    """A weight of 1 on every token of the mask."""

    active: ClassVar[bool] = False

    def __call__(self, log_ratio_BT: Array, mask_BT: Array) -> Array:
        return jnp.where(mask_BT, jnp.ones_like(log_ratio_BT), 0.0)
