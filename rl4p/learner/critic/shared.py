"""A value head on the policy's own trunk."""

from dataclasses import dataclass

import jax

from rl4p.learner.critic.options import CriticOptions
from rl4p.model.decoder import Decoder
from rl4p.model.heads import init_value_head, values
from rl4p.types import Array, Params, Trajectories


@dataclass(frozen=True, kw_only=True)
class Shared(CriticOptions):
    """V_t = h_{t-1} w + b on the policy's activations: no further forward, a head to train.

    Attributes:
      detach: the value loss trains the head alone and leaves the trunk to the policy's loss.
    """

    detach: bool = False

    def init(self, decoder: Decoder, policy_params: Params) -> Params:
        """What stands at `critic` among the trained parameters; every estimate starts at 0."""
        return {"value": init_value_head(decoder.config.width)}

    def values(
        self, decoder: Decoder, params: Params, hidden_BTD: Array, trajectories: Trajectories
    ) -> Array:
        """float32 [B, T], at t that of the state which token t is chosen in."""
        return values(
            params["critic"], jax.lax.stop_gradient(hidden_BTD) if self.detach else hidden_BTD
        )
