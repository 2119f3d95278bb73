"""The clipped value loss of PPO's critic."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.bounds import AboveZero
from rl4p.types import Array


@dataclass(frozen=True, kw_only=True)
class ValueClip:
    """PPO's value loss, per token, to minimise (as in OpenAI's baselines and in verl):

        loss = 1/2 max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2)

    No policy loss and no option of `update`: a critic, trained jointly or apart, calls it.

    Attributes:
      clip: how far a value may move from that of the start of the step; None is the plain square.
    """

    clip: AboveZero | None = 0.5

    def __call__(self, values_BT: Array, old_values_BT: Array, returns_BT: Array) -> Array:
        """float32 [B, T], to be read on the loss mask only; differentiable by `values_BT`."""
        square_BT = jnp.square(values_BT - returns_BT)
        if self.clip is None:
            return 0.5 * square_BT
        clipped_BT = jnp.clip(values_BT, old_values_BT - self.clip, old_values_BT + self.clip)
        return 0.5 * jnp.maximum(square_BT, jnp.square(clipped_BT - returns_BT))
