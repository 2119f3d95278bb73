"""An entropy bonus with a fixed coefficient."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.configuration.bounds import NonNegative


@dataclass(frozen=True, kw_only=True)
class Bonus:
    """The bonus alpha x H(pi(. | tokens before t)), subtracted from the loss of each token.

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
