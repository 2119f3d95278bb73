"""An entropy bonus whose coefficient adapts to a target."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.configuration.bounds import AboveZero, NonNegative


@dataclass(frozen=True, kw_only=True)
class Adaptive:
    """The adaptive entropy control of Skywork-OR1 (2505.22312), applied once per step:

        alpha = c where H <= target, else 0
        c <- c + step where H < target, c - step where H > target, kept in [0, maximum]

    The first line uses the H of the previous step, because the entropy of a step is known only
    after its loss (the paper uses the same step's). In the first step c is used as if H were below
    the target. The paper has no upper bound of c. A step whose entropy is not finite changes
    nothing.

    Attributes:
      target: desired mean entropy, in nats.
      step: change of c per step.
      alpha: initial c.
      maximum: upper bound of c.
    """

    active: ClassVar[bool] = True
    selects: ClassVar[bool] = False

    target: NonNegative = 0.2
    step: AboveZero = 0.005
    alpha: NonNegative = 0.0
    maximum: NonNegative = 0.05

    def coefficient(self, memory: dict[str, Array]) -> Array:
        below = memory["entropy"] <= self.target
        return jnp.where(below, memory["coefficient"], 0.0)

    def select(self, entropy_BT: Array, mask_BT: Array) -> Array:
        return mask_BT

    def initial_state(self) -> dict[str, Array]:
        return {"coefficient": jnp.float32(self.alpha), "entropy": jnp.float32(0)}

    def next_state(self, memory: dict[str, Array], measured: Array) -> dict[str, Array]:
        moved = memory["coefficient"] + self.step * jnp.sign(self.target - measured)
        after = {"coefficient": jnp.clip(moved, 0.0, self.maximum), "entropy": measured}
        finite = jnp.isfinite(measured)
        return {name: jnp.where(finite, x, memory[name]) for name, x in after.items()}
