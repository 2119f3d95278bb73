"""A KL penalty whose coefficient adapts to a target."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.configuration.bounds import AboveOne, AboveZero, Share
from rl4p.learner.kl.options import KLOptions


@dataclass(frozen=True, kw_only=True)
class Adaptive(KLOptions):
    """The penalty beta x KL(pi || pi_reference), with beta updated once per step (1909.08593):

        beta <- beta (1 + clip(KL / target - 1, -limit, limit) / horizon)

    A step whose KL is not finite does not change beta. The paper measures KL per sequence; here KL
    is per token. The paper counts its horizon in sequences; here it is the paper's divided by the
    number of sequences in a step.

    Attributes:
      beta: initial coefficient.
      target: desired mean penalty per token.
      limit: bound of the relative error KL / target - 1.
      horizon: number of steps in which an error of 1 would change beta by its own size.
    """

    active: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"reference_logprobs"})

    beta: AboveZero = 0.001
    target: AboveZero = 0.1
    limit: Share = 0.2
    horizon: AboveOne = 40.0

    def coefficient(self, memory: dict[str, Array]) -> Array:
        return memory["coefficient"]

    def initial_state(self) -> dict[str, Array]:
        return {"coefficient": jnp.float32(self.beta)}

    def next_state(self, memory: dict[str, Array], measured: Array) -> dict[str, Array]:
        error = jnp.clip(measured / self.target - 1.0, -self.limit, self.limit)
        factor = jnp.where(jnp.isfinite(measured), 1.0 + error / self.horizon, 1.0)
        return {"coefficient": memory["coefficient"] * factor}
