"""Policy gradients on high-entropy tokens only."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.configuration.bounds import TopShare
from rl4p.learner.selection import largest, share_count


@dataclass(frozen=True, kw_only=True)
class TopTokens:
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

    def coefficient(self, memory: dict[str, Array]) -> Array:
        return jnp.float32(0)

    def select(self, entropy_BT: Array, mask_BT: Array) -> Array:
        return largest(entropy_BT, mask_BT, share_count(mask_BT, self.share))
