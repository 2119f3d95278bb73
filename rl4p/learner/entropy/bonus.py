"""An entropy bonus of fixed weight."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from rl4p.configuration.bounds import NonNegative
from rl4p.types import Array


@dataclass(frozen=True, kw_only=True)
class Bonus:
    """alpha x H(pi(. | tokens before t)), subtracted from each token's loss.

    Attributes:
      alpha: the coefficient.
    """

    selects: ClassVar[bool] = False

    alpha: NonNegative = 0.001

    @property
    def active(self) -> bool:
        return self.alpha > 0

    def coefficient(self, memory: dict[str, Array]) -> Array:
        return jnp.float32(self.alpha)

    def select(self, entropy_BT: Array, mask_BT: Array) -> Array:
        return mask_BT
