"""The call of the advantage phase, with its options, its scores and a KL penalty in the reward."""

from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp

from rl4p.base.types import Array, Rewards, Trajectories
from rl4p.learner.advantage_options import clipped, drop_truncated
from rl4p.learner.masking import loss_mask
from rl4p.learner.phase_results import check_array, check_pair
from rl4p.protocols.phases import TeachesCritic
from rl4p.protocols.traits import PhaseTraits

KEY = "advantage"


class AdvantageEstimate(NamedTuple):
    """The result of the advantage phase, from which the update learns.

    Attributes:
      loss_mask_BT: the response mask without invalid samples and truncated samples dropped here.
      returns_BT: the targets of the critic; None without a critic.
      metrics: `update/kl`, the mean penalty per token, if the KL penalty is in the reward.
    """

    advantages_BT: Array
    loss_mask_BT: Array
    returns_BT: Array | None
    metrics: dict[str, Array]

    def for_update(self, scores: dict[str, Array]) -> dict[str, Array]:
        """Returns the scores, with the targets of the critic if there is one."""
        return scores if self.returns_BT is None else scores | {"returns": self.returns_BT}


def estimate(
    advantage: Any,
    kl: Any,
    trajectories: Trajectories,
    rewards: Rewards,
    scores: dict[str, Array],
    coefficient: Array,
    **memory: Any,
) -> Any:
    """Calls an advantage phase (`protocols.Advantage`) with the scores that it requested.

    Args:
      kl: a `protocols.KL`; with placement in_reward it is subtracted from the reward per token.
      coefficient: the weight of the KL penalty.
      memory: the memory of the phase, if it has one.

    Returns:
      An `AdvantageEstimate`, and the new memory if the phase has one.

    Raises:
      RunError: the result of the phase has a wrong type or shape; raised while this is traced.
    """
    rewards = drop_truncated(advantage, trajectories, rewards)
    mask_BT, metrics = loss_mask(trajectories, rewards), {}
    if kl.active and kl.placement == "in_reward":
        behaviour_BT = jnp.where(mask_BT, trajectories.behaviour_logprobs_BT, 0.0)
        reference_BT = jnp.where(mask_BT, scores["reference_logprobs"], 0.0)
        divergence_BT = kl.penalty(behaviour_BT, reference_BT, behaviour_BT)
        divergence_BT = jnp.where(mask_BT, divergence_BT, 0.0)
        tokens = jnp.maximum(jnp.sum(mask_BT, dtype=jnp.float32), 1)
        metrics["update/kl"] = jnp.sum(divergence_BT) / tokens
        penalty_BT = -coefficient * divergence_BT
        own_BT = 0.0 if rewards.tokens_BT is None else rewards.tokens_BT
        rewards = replace(
            rewards,
            total_B=rewards.total_B + jnp.sum(penalty_BT, axis=1),
            tokens_BT=own_BT + penalty_BT,
        )
    needs = PhaseTraits.read(advantage).needs
    requested = {"scores": {name: scores[name] for name in needs}} if needs else {}
    result = advantage(trajectories, rewards, **requested, **memory)
    if memory:
        check_pair(KEY, advantage, result, "(advantages_BT, memory)")
    advantages_BT, *new_memory = result if memory else (result,)
    check_array(KEY, advantage, "advantages_BT", advantages_BT, trajectories.tokens_BT.shape)
    returns_BT = None
    if isinstance(advantage, TeachesCritic):
        returns_BT = advantage.returns(trajectories, rewards, requested["scores"])
        check_array(KEY, advantage, "returns", returns_BT, trajectories.tokens_BT.shape)
    estimated = AdvantageEstimate(clipped(advantage, advantages_BT), mask_BT, returns_BT, metrics)
    return (estimated, *new_memory) if memory else estimated
