"""The objective of a gradient step."""

from dataclasses import dataclass

from rl4p.base.types import Sampling
from rl4p.distributed.mesh import Mesh
from rl4p.model.decoder import Decoder
from rl4p.protocols.phases import KL, Correction, Critic, Entropy, Update


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The policy loss and the terms added to it, for one policy on one mesh.

    It is static: the gradient step is compiled for it.

    Attributes:
      decoder: the decoder of the policy.
      sampling: the distribution that the tokens were drawn from.
      mesh: the mesh whose devices share the rows.
      rows_together: how many rows of one group stay in one minibatch and one microbatch.
    """

    update: Update
    correction: Correction
    kl: KL
    entropy: Entropy
    critic: Critic
    decoder: Decoder
    sampling: Sampling
    mesh: Mesh
    rows_together: int = 1
