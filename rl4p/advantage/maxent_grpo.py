"""Listwise weights with a maximum-entropy target."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from types import MappingProxyType
from typing import Literal

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.configuration.bounds import AboveZero, Natural, NonNegative
from rl4p.learner.advantage_options import AdvantageOptions
from rl4p.learner.masking import (
    group_log_softmax,
    group_statistics,
    loss_mask,
    masked_sum,
    response_lengths,
    spread_over_tokens,
)

Memory = dict[str, Array]


@dataclass(frozen=True, kw_only=True)
class MaxEntGRPO(AdvantageOptions):
    """MaxEnt-GRPO, with weights over the K valid samples of a group, on every response token:

        q = softmax(r / reward_temperature), then q (1 - floor K) + floor
        w = softmax((log q + beta log pi_ref) / (tau + beta))
        A = K w - 1

    log pi_ref is the mean over the response tokens, so that length alone changes no weight. A step
    uses the tau in memory. Then tau is updated from H, the mean entropy of the response tokens:

        H_ema = 0.9 H_ema + 0.1 H, from the first H on
        log tau += tau_learning_rate (target_entropy - H_ema), clamped, after tau_warmup steps

    The advantage is exactly 0 for invalid samples, and in a group that has fewer than two valid
    samples or whose valid samples all have the same reward (where the formula would let the
    reference alone change the weights). A sample without response tokens has no log pi_ref and does
    not count in its group.

    Attributes:
      reward_temperature: temperature of q.
      floor: the least that q gives to a sample; floor K should be far under 1.
      beta: weight of the reference; 0 needs no reference.
      denominator: `tau_plus_beta`, or `tau` alone.
      tau: initial temperature of w.
      tau_learning_rate: 0 keeps tau constant and needs no entropy.
      target_entropy: in nats per token.
      tau_warmup: number of first steps in which only H_ema changes.
      tau_min, tau_max: bounds of tau.
    """

    compares_group = True

    reward_temperature: AboveZero = 1.0
    floor: AboveZero = 1e-6
    beta: NonNegative = 0.0
    denominator: Literal["tau_plus_beta", "tau"] = "tau_plus_beta"
    tau: AboveZero = 0.5
    tau_learning_rate: NonNegative = 0.0
    target_entropy: NonNegative = 0.5
    tau_warmup: Natural = 10
    tau_min: AboveZero = 0.05
    tau_max: AboveZero = 5.0

    def __post_init__(self) -> None:
        controller_options = ("target_entropy", "tau_warmup", "tau_min", "tau_max")
        changed = [
            name for name in controller_options if getattr(self, name) != getattr(type(self), name)
        ]
        if changed and not self.tau_learning_rate:
            raise ValueError(
                f"{', '.join(changed)} would have no effect: tau_learning_rate=0 keeps tau fixed."
            )

    @property
    def needs(self) -> frozenset[str]:
        reference = {"reference_logprobs"} if self.beta else set()
        return frozenset(reference | ({"entropy"} if self.tau_learning_rate else set()))

    def initial_state(self) -> Memory:
        return {
            "log_tau": jnp.float32(log(self.tau)),
            "entropy": jnp.float32(0),
            "steps": jnp.int32(0),
        }

    def __call__(
        self,
        trajectories: Trajectories,
        rewards: Rewards,
        *,
        scores: Mapping[str, Array] = MappingProxyType({}),
        memory: Memory,
    ) -> tuple[Array, Memory]:
        mask_BT, group_ids_B = loss_mask(trajectories, rewards), trajectories.group_ids_B
        lengths_B = response_lengths(trajectories)
        valid_B = rewards.valid_B & (lengths_B > 0)
        group = group_statistics(rewards.total_B, valid_B, group_ids_B)
        scaled_B = rewards.total_B / self.reward_temperature
        q_B = jnp.exp(group_log_softmax(scaled_B, valid_B, group_ids_B))
        tau = jnp.exp(memory["log_tau"])
        logits_B = jnp.log(q_B * (1.0 - self.floor * group.count_B) + self.floor)
        if self.beta:
            reference_BT = jnp.where(mask_BT, scores["reference_logprobs"], 0.0)
            reference_B = jnp.sum(reference_BT, axis=1) / jnp.maximum(lengths_B, 1)
            logits_B = logits_B + self.beta * reference_B
        logits_B = logits_B / (tau + self.beta if self.denominator == "tau_plus_beta" else tau)
        w_B = jnp.exp(group_log_softmax(logits_B, valid_B, group_ids_B))
        zero_B = group.equal_B | ~valid_B
        advantages_B = jnp.where(zero_B, 0.0, group.count_B * w_B - 1.0)
        advantages_BT = spread_over_tokens(advantages_B, trajectories)
        if not self.tau_learning_rate:
            return advantages_BT, memory

        # The next step's tau.
        tokens = jnp.sum(mask_BT, dtype=jnp.float32)
        now = masked_sum(scores["entropy"], mask_BT) / jnp.maximum(tokens, 1)
        average = jnp.where(memory["steps"] == 0, now, 0.9 * memory["entropy"] + 0.1 * now)
        steps, log_tau = memory["steps"] + 1, memory["log_tau"]
        updated = log_tau + self.tau_learning_rate * (self.target_entropy - average)
        updated = jnp.clip(updated, log(self.tau_min), log(self.tau_max))
        new = {
            "log_tau": jnp.where(steps > self.tau_warmup, updated, log_tau),
            "entropy": average,
            "steps": steps,
        }
        # A step without a valid token has no entropy, and leaves the memory unchanged.
        memory = {name: jnp.where(tokens > 0, x, memory[name]) for name, x in new.items()}
        return advantages_BT, memory
