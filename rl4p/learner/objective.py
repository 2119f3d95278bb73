"""The objective of a gradient step."""

from dataclasses import dataclass

from rl4p.protocols.phases import KL, Correction, Critic, Entropy, Update


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The policy loss and the terms added to it. Static: the gradient step is compiled for it.

    Attributes:
      rows_together: how many rows of one group stay in one minibatch and one microbatch.
    """

    update: Update
    correction: Correction
    kl: KL
    entropy: Entropy
    critic: Critic
    rows_together: int = 1
