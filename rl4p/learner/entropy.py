"""Entropy bonuses, and the selection of tokens by entropy: `protocols.Entropy`."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.configuration.bounds import AboveZero, NonNegative, TopShare
from rl4p.learner.masking import largest, share_count


class EntropyTerm:
    """The behaviour of a term that says nothing else: no bonus, and every token is kept."""

    selects: ClassVar[bool] = False

    def coefficient(self, memory: dict[str, Array]) -> Array:
        return jnp.float32(0)

    def select(self, entropy_BT: Array, mask_BT: Array) -> Array:
        return mask_BT


@dataclass(frozen=True, kw_only=True)
class NONE(EntropyTerm):
    """No entropy bonus and no selection: every token keeps its gradient."""

    active: ClassVar[bool] = False


@dataclass(frozen=True, kw_only=True)
class Bonus(EntropyTerm):
    """The bonus alpha x H(pi(. | tokens before t)), subtracted from the loss of each token.

    Attributes:
      alpha: the coefficient.
    """

    alpha: NonNegative = 0.001

    @property
    def active(self) -> bool:
        return self.alpha > 0

    def coefficient(self, memory: dict[str, Array]) -> Array:
        return jnp.float32(self.alpha)


@dataclass(frozen=True, kw_only=True)
class Adaptive(EntropyTerm):
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

    target: NonNegative = 0.2
    step: AboveZero = 0.005
    alpha: NonNegative = 0.0
    maximum: NonNegative = 0.05

    def coefficient(self, memory: dict[str, Array]) -> Array:
        below = memory["entropy"] <= self.target
        return jnp.where(below, memory["coefficient"], 0.0)

    def initial_state(self) -> dict[str, Array]:
        return {"coefficient": jnp.float32(self.alpha), "entropy": jnp.float32(0)}

    def next_state(self, memory: dict[str, Array], measured: Array) -> dict[str, Array]:
        moved = memory["coefficient"] + self.step * jnp.sign(self.target - measured)
        after = {"coefficient": jnp.clip(moved, 0.0, self.maximum), "entropy": measured}
        finite = jnp.isfinite(measured)
        return {name: jnp.where(finite, x, memory[name]) for name, x in after.items()}


@dataclass(frozen=True, kw_only=True)
class TopTokens(EntropyTerm):
    """A policy gradient on only the tokens with the highest entropy (2506.01939).

    The share is taken of the minibatch's loss tokens. At least one token is selected, and ties at
    the threshold are included. There is no entropy bonus.

    Attributes:
      share: share of the tokens to select; the default is the paper's 20 percent.
    """

    active: ClassVar[bool] = False
    selects: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})

    share: TopShare = 0.2

    def select(self, entropy_BT: Array, mask_BT: Array) -> Array:
        return largest(entropy_BT, mask_BT, share_count(mask_BT, self.share))
