"""Critics, which estimate the return for advantages that need `values`."""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax
import jax.numpy as jnp

from rl4p.base.types import Array, Params, Trajectories
from rl4p.configuration.bounds import AboveZero, NonNegative
from rl4p.learner.logprobs import trunk
from rl4p.model.decoder import Decoder
from rl4p.model.heads import init_value_head, values


@dataclass(frozen=True, kw_only=True)
class CriticOptions:
    """PPO's value loss (as in OpenAI's baselines and in verl), per token, to minimise:

        loss = coefficient/2 max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2)

    R is the advantage's `returns`, and V_old the value at the start of the step. The value loss is
    aggregated like the policy loss (`update.aggregation`), and one gradient serves both losses.

    Attributes:
      coefficient: weight of the value loss.
      clip: half-width of the clipping range around V_old; None gives the plain square.
    """

    active: ClassVar[bool] = True
    own_trunk: ClassVar[bool] = False  # whether `values` runs its own trunk

    coefficient: NonNegative = 0.5
    clip: AboveZero | None = 0.5

    def loss(self, values_BT: Array, old_values_BT: Array, returns_BT: Array) -> Array:
        """Returns float32 [B, T], valid on the loss mask only; differentiable in `values_BT`."""
        square_BT = jnp.square(values_BT - returns_BT)
        if self.clip is not None:
            clipped_BT = jnp.clip(values_BT, old_values_BT - self.clip, old_values_BT + self.clip)
            square_BT = jnp.maximum(square_BT, jnp.square(clipped_BT - returns_BT))
        return 0.5 * self.coefficient * square_BT


@dataclass(frozen=True, kw_only=True)
class NONE:
    """No value head and no value loss. An advantage that needs `values` is refused."""

    active: ClassVar[bool] = False
    own_trunk: ClassVar[bool] = False


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


@dataclass(frozen=True, kw_only=True)
class Separate(CriticOptions):
    """A value head V_t = h_{t-1} w + b on a second trunk, initialised as a copy of the policy's.

    As in PPO for language models (2203.02155). A separate critic needs twice the parameters and
    twice the forward passes, but neither loss changes the parameters of the other.
    """

    own_trunk: ClassVar[bool] = True

    def init(self, decoder: Decoder, policy_params: Params) -> Params:
        """Returns the parameters to train under `critic`; every estimate starts at 0."""
        names = ("embedding", "per_layer", "layers", "norm")
        copied = {name: policy_params[name] for name in names if name in policy_params}
        return jax.tree.map(jnp.copy, copied) | {"value": init_value_head(decoder.config.width)}

    def values(
        self, decoder: Decoder, params: Params, hidden_BTD: Array, trajectories: Trajectories
    ) -> Array:
        """Returns float32 [B, T]: at t, the value of the state in which token t is chosen."""
        own = replace(trajectories, experts_BTX=None)  # those of the policy
        return values(params["critic"], trunk(decoder, params["critic"], own))
