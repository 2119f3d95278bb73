"""Penalties that keep the policy near a reference: `protocols.KL`."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp

from rl4p.base.types import Array
from rl4p.configuration.bounds import AboveOne, AboveZero, NonNegative, Share

Estimator = Literal["k1", "k2", "k3", "k3_plus"]


def kl_estimate(logprobs: Array, reference: Array, estimator: Estimator) -> Array:
    """Estimates KL(pi || pi_reference) from a token that pi sampled.

    The estimators are Schulman's ("Approximating KL divergence"). With the difference
    d = log pi - log pi_reference, their values and derivatives with respect to log pi are:

        k1        d                    1            unbiased; may be negative
        k2        d^2 / 2              d            biased; its gradient is the divergence's
        k3        exp(-d) - 1 + d      1 - exp(-d)  unbiased, never negative; biased gradient
        k3_plus   the value of k3      d            k3's value with k2's gradient (verl)

    As a loss, k1 alone has a gradient of expectation 0, so k1 belongs in the reward. The
    exponential of k3 clamps d to +-20.
    """
    difference = logprobs - reference
    if estimator == "k1":
        return difference
    k2 = jnp.square(difference) / 2
    if estimator == "k2":
        return k2
    k3 = jnp.expm1(jnp.clip(-difference, -20.0, 20.0)) + difference
    if estimator == "k3":
        return k3
    # The value of k3 - k2 + k2 would lose precision where k2 is much larger than k3.
    return jax.lax.stop_gradient(k3) + (k2 - jax.lax.stop_gradient(k2))


@dataclass(frozen=True, kw_only=True)
class KLOptions:
    """Options of a KL penalty: how the divergence is estimated, and where the penalty acts.

    Attributes:
      estimator: see `kl_estimate`.
      placement: `in_loss`, or `in_reward`: subtracted from the reward, without a gradient.
      importance_weight: multiplies the penalty in the loss by w = pi / pi_behaviour, with log w
        clamped to +-20, because pi_behaviour sampled the tokens. With k1 and k3, w is
        differentiable, so the gradient of their unbiased value is unbiased (DeepSeek-V3.2). With k2
        and k3_plus, w is a constant, because not their value but their gradient is unbiased.
      against: the policy in place of pi_reference. `behaviour` is the policy that sampled, which
        needs no model: with k2 and beta = 2 tau the penalty is tau (log pi / pi_behaviour)^2, which
        keeps any loss near its samples (prime-rl). It is 0 on tokens that no policy sampled.
    """

    estimator: Estimator = "k3"
    placement: Literal["in_loss", "in_reward"] = "in_loss"
    importance_weight: bool = False
    against: Literal["reference", "behaviour"] = "reference"

    @property
    def needs(self) -> frozenset[str]:
        return frozenset({"reference_logprobs"} if self.against == "reference" else ())

    def __post_init__(self) -> None:
        if self.against == "behaviour" and self.placement == "in_reward":
            raise ValueError(
                "against=behaviour needs placement=in_loss: in the reward, the penalty compares "
                "the sampling policy with itself, so it is 0."
            )
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


@dataclass(frozen=True, kw_only=True)
class NONE:
    """No penalty, and no reference policy in memory."""

    placement: ClassVar[str] = "in_loss"
    active: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()

    def coefficient(self, memory: dict[str, Array]) -> Array:
        return jnp.float32(0)

    def penalty(self, logprobs_BT: Array, reference_BT: Array, behaviour_BT: Array) -> Array:
        return jnp.zeros_like(logprobs_BT)


@dataclass(frozen=True, kw_only=True)
class Fixed(KLOptions):
    """The penalty beta x KL(pi || pi_reference). With beta = 0 there is no reference.

    Attributes:
      beta: the coefficient.
    """

    beta: NonNegative = 0.001

    @property
    def active(self) -> bool:
        return self.beta > 0

    @property
    def needs(self) -> frozenset[str]:
        return super().needs if self.active else frozenset()

    def coefficient(self, memory: dict[str, Array]) -> Array:
        return jnp.float32(self.beta)


@dataclass(frozen=True, kw_only=True)
class Adaptive(KLOptions):
    """The penalty beta x KL(pi || pi_reference), with beta updated once per step (1909.08593):

        beta <- beta (1 + clip(KL / target - 1, -limit, limit) / horizon)

    A step whose KL is not finite does not change beta. The paper measures KL per sequence; here KL
    is per token. The paper counts its horizon in sequences; here it is the paper's divided by the
    number of sequences in a step.

    Attributes:
      beta: initial coefficient.
      target: desired mean penalty per token.
      limit: bound of the relative error KL / target - 1.
      horizon: number of steps in which an error of 1 would change beta by its own size.
    """

    active: ClassVar[bool] = True

    beta: AboveZero = 0.001
    target: AboveZero = 0.1
    limit: Share = 0.2
    horizon: AboveOne = 40.0

    def coefficient(self, memory: dict[str, Array]) -> Array:
        return memory["coefficient"]

    def initial_state(self) -> dict[str, Array]:
        return {"coefficient": jnp.float32(self.beta)}

    def next_state(self, memory: dict[str, Array], measured: Array) -> dict[str, Array]:
        error = jnp.clip(measured / self.target - 1.0, -self.limit, self.limit)
        factor = jnp.where(jnp.isfinite(measured), 1.0 + error / self.horizon, 1.0)
        return {"coefficient": memory["coefficient"] * factor}
