"""No entropy bonus."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from rl4p.base.types import Array


@dataclass(frozen=True, kw_only=True)
class NONE:
    """No entropy bonus and no selection: every token keeps its gradient."""

    active: ClassVar[bool] = False
    selects: ClassVar[bool] = False

    def coefficient(self, memory: dict[str, Array]) -> Array:
        return jnp.float32(0)

    def select(self, entropy_BT: Array, mask_BT: Array) -> Array:
        return mask_BT
