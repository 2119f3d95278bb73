"""A separate critic, with its own trunk."""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Params, Trajectories
from rl4p.learner.critic.options import CriticOptions
from rl4p.learner.logprobs import trunk
from rl4p.model.decoder import Decoder
from rl4p.model.heads import init_value_head, values


@dataclass(frozen=True, kw_only=True)
class Separate(CriticOptions):
    """A value head V_t = h_{t-1} w + b on a second trunk, initialised as a copy of the policy's.

    As in PPO for language models (2203.02155). A separate critic needs twice the parameters and
    twice the forward passes, but neither loss changes the parameters of the other.
    """

    own_trunk: ClassVar[bool] = True

    def init(self, decoder: Decoder, policy_params: Params) -> Params:
        """Returns the parameters to train under `critic`; every estimate starts at 0."""
        copied = {name: policy_params[name] for name in ("embedding", "layers", "norm")}
        return jax.tree.map(jnp.copy, copied) | {"value": init_value_head(decoder.config.width)}

    def values(
        self, decoder: Decoder, params: Params, hidden_BTD: Array, trajectories: Trajectories
    ) -> Array:
        """Returns float32 [B, T]: at t, the value of the state in which token t is chosen."""
        return values(params["critic"], trunk(decoder, params["critic"], trajectories))
