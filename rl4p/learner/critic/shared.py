"""A value head on the policy's trunk."""

from dataclasses import dataclass

import jax

from rl4p.base.types import Array, Params, Trajectories
from rl4p.learner.critic.options import CriticOptions
from rl4p.model.decoder import Decoder
from rl4p.model.heads import init_value_head, values


@dataclass(frozen=True, kw_only=True)
class Shared(CriticOptions):
    """A value head V_t = h_{t-1} w + b on the policy's activations, without another forward pass.

    Attributes:
      detach: whether the value loss trains the head only, and does not change the trunk.
    """

    detach: bool = False

    def init(self, decoder: Decoder, policy_params: Params) -> Params:
        """Returns the parameters to train under `critic`; every estimate starts at 0."""
        return {"value": init_value_head(decoder.config.width)}

    def values(
        self, decoder: Decoder, params: Params, hidden_BTD: Array, trajectories: Trajectories
    ) -> Array:
        """Returns float32 [B, T]: at t, the value of the state in which token t is chosen."""
        return values(
            params["critic"], jax.lax.stop_gradient(hidden_BTD) if self.detach else hidden_BTD
        )
