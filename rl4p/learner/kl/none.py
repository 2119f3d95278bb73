"""No KL penalty."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from rl4p.base.types import Array


@dataclass(frozen=True, kw_only=True)
class NONE:
    """No penalty, and no reference policy in memory."""

    placement: ClassVar[str] = "in_loss"
    active: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()

    def coefficient(self, memory: dict[str, Array]) -> Array:
        return jnp.float32(0)

    def penalty(self, logprobs_BT: Array, reference_BT: Array, behaviour_BT: Array) -> Array:
        return jnp.zeros_like(logprobs_BT)
