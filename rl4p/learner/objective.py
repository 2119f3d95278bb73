"""What a gradient step descends."""

from dataclasses import dataclass

from rl4p.protocols import KL, Correction, Critic, Entropy, Update


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The policy's loss, and what joins it. It is static: the gradient step is compiled for it.

    Attributes:
      rows_together: how many rows of one group no minibatch and no microbatch divides.
    """

    update: Update
    correction: Correction
    kl: KL
    entropy: Entropy
    critic: Critic
    rows_together: int = 1
