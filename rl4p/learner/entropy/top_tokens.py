"""Policy gradients of the uncertain tokens only."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from rl4p.configuration.bounds import TopShare
from rl4p.learner.selection import largest, share_count
from rl4p.types import Array


@dataclass(frozen=True, kw_only=True)
class TopTokens:
    """Only the tokens with the highest entropy keep their policy gradient (2506.01939).

    They are the share of the minibatch's loss tokens with the largest entropy, at least one, ties
    at the threshold included. There is no bonus.

    Attributes:
      share: the paper's 20 percent.
    """

    active: ClassVar[bool] = False
    selects: ClassVar[bool] = True
    needs: ClassVar[frozenset[str]] = frozenset({"entropy"})

    share: TopShare = 0.2

    def coefficient(self, memory: dict[str, Array]) -> Array:
        return jnp.float32(0)

    def select(self, entropy_BT: Array, mask_BT: Array) -> Array:
        return largest(entropy_BT, mask_BT, share_count(mask_BT, self.share))
