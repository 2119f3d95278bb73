"""A KL penalty with a fixed coefficient."""

from dataclasses import dataclass

import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.configuration.bounds import NonNegative
from rl4p.learner.kl.options import KLOptions


@dataclass(frozen=True, kw_only=True)
class Fixed(KLOptions):
    """The penalty beta x KL(pi || pi_reference). With beta = 0 there is no reference.

    Attributes:
      beta: the coefficient.
    """

    beta: NonNegative = 0.001

    @property
    def active(self) -> bool:
        return self.beta > 0

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"reference_logprobs"} if self.active else ())

    def coefficient(self, memory: dict[str, Array]) -> Array:
        return jnp.float32(self.beta)
