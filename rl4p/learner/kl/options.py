"""The options that every KL penalty takes, and the penalty of a token."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.learner.kl.estimators import Estimator, kl_estimate


@dataclass(frozen=True, kw_only=True)
class KLOptions:
    """Options of a KL penalty: how the divergence is estimated, and where the penalty acts.

    Attributes:
      estimator: see `estimators.py`.
      placement: `in_loss`, or `in_reward`: subtracted from the reward, without a gradient.
      importance_weight: multiplies the penalty in the loss by w = pi / pi_behaviour, with log w
        clamped to +-20, because pi_behaviour sampled the tokens. With k1 and k3, w is
        differentiable, so the gradient of their unbiased value is unbiased (DeepSeek-V3.2). With k2
        and k3_plus, w is a constant, because not their value but their gradient is unbiased.
    """

    estimator: Estimator = "k3"
    placement: Literal["in_loss", "in_reward"] = "in_loss"
    importance_weight: bool = False

    def __post_init__(self) -> None:
        if self.importance_weight and self.placement == "in_reward":
            raise ValueError(
                "importance_weight=true needs placement=in_loss: in the reward, the divergence is "
                "that of the sampling policy, so the weight is 1."
            )

    def penalty(self, logprobs_BT: Array, reference_BT: Array, behaviour_BT: Array) -> Array:
        kl_BT = kl_estimate(logprobs_BT, reference_BT, self.estimator)
        if self.importance_weight:
            weight_BT = jnp.exp(jnp.clip(logprobs_BT - behaviour_BT, -20.0, 20.0))
            if self.estimator in ("k2", "k3_plus"):
                weight_BT = jax.lax.stop_gradient(weight_BT)
            kl_BT = weight_BT * kl_BT
        return kl_BT if self.placement == "in_loss" else jax.lax.stop_gradient(kl_BT)
