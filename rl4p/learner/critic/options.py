"""The options that every critic takes, and the value loss."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.configuration.bounds import AboveZero, NonNegative


@dataclass(frozen=True, kw_only=True)
class CriticOptions:
    """PPO's value loss (as in OpenAI's baselines and in verl), per token, to minimise:

        loss = coefficient/2 max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2)

    R is the advantage's `returns`, and V_old the value at the start of the step. The value loss is
    aggregated like the policy loss (`update.aggregation`), and one gradient serves both losses.

    Attributes:
      coefficient: weight of the value loss.
      clip: half-width of the clipping range around V_old; None gives the plain square.
    """

    active: ClassVar[bool] = True
    own_trunk: ClassVar[bool] = False  # whether `values` runs its own trunk

    coefficient: NonNegative = 0.5
    clip: AboveZero | None = 0.5

    def loss(self, values_BT: Array, old_values_BT: Array, returns_BT: Array) -> Array:
        """Returns float32 [B, T], valid on the loss mask only; differentiable in `values_BT`."""
        square_BT = jnp.square(values_BT - returns_BT)
        if self.clip is not None:
            clipped_BT = jnp.clip(values_BT, old_values_BT - self.clip, old_values_BT + self.clip)
            square_BT = jnp.maximum(square_BT, jnp.square(clipped_BT - returns_BT))
        return 0.5 * self.coefficient * square_BT
