"""Transforms of graded groups, between the reward and the advantage, and their call."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import numpy as np

from rl4p.base.errors import RunError
from rl4p.base.types import Group
from rl4p.configuration.bounds import Finite, Positive
from rl4p.distributed.processes import to_host
from rl4p.learner.phase_results import described, refuse
from rl4p.loop.groups import divided, joined
from rl4p.model.policy import Policy
from rl4p.protocols.collection import Collected, Filter, Transform


@dataclass(frozen=True, kw_only=True)
class Drop:
    """Drops a group unless each filter keeps it. A collector replaces such groups instead.

    Attributes:
      filters: filters by name.
    """

    filters: Mapping[str, Filter]

    def __post_init__(self) -> None:
        if not self.filters:
            raise ValueError(
                "drop needs a filter: +filter@transforms.NAME.filters.NAME=OPTION for each."
            )

    def __call__(self, group: Group) -> Group:
        if all(keeps(group) for keeps in self.filters.values()):
            return group
        return group.without(np.ones(len(group.episodes), bool))


@dataclass(frozen=True, kw_only=True)
class Relabel:
    """Replaces the total reward by `right` for right samples, and by `wrong` for the others.

    Samples that are invalid or to which the term does not apply keep their reward, and all keep
    their terms. The rewards of single tokens are discarded: the total would include them.

    Attributes:
      term: the reward term that is at least 1 for a right sample; None for the total reward.
      right, wrong: the new rewards.
    """

    term: str | None = "correct"
    right: Finite = 1.0
    wrong: Finite = -1.0

    def __post_init__(self) -> None:
        if self.right == self.wrong:
            raise ValueError(
                f"right and wrong are both {self.right:g}: all rewards would be equal."
            )

    def __call__(self, group: Group) -> Group:
        rewards, right_B = group.rewards, group.right(self.term)
        graded_B = rewards.valid_B if self.term is None else rewards.graded(self.term)
        label_B = np.where(right_B, np.float32(self.right), np.float32(self.wrong))
        total_B = np.where(graded_B, label_B, rewards.total_B)
        return replace(group, rewards=replace(rewards, total_B=total_B, tokens_BT=None))


@dataclass(frozen=True, kw_only=True)
class GFPO:
    """Keeps the best samples of each group, and drops the others (2508.09726).

        by=length         the samples of the fewest tokens
        by=efficiency     the samples of the largest reward per token

    The baseline of a group is that of the kept samples. The paper keeps 8 of 16 or 24 samples, so
    that responses stay short. Of equal samples, the first is kept.

    Attributes:
      keep: the number of samples to keep, fewer than `group_size`.
      by: what makes a sample better.
    """

    keep: Positive
    by: Literal["length", "efficiency"] = "length"

    def __call__(self, group: Group) -> Group:
        cost_B = np.sum(np.asarray(group.trajectories.response_mask_BT), axis=1)
        if self.by == "efficiency":
            cost_B = -np.asarray(group.rewards.total_B) / np.maximum(cost_B, 1)
        order_B = np.argsort(np.where(group.rewards.valid_B, cost_B, np.inf), kind="stable")
        dropped_B = np.ones(len(group.episodes), bool)
        dropped_B[order_B[: self.keep]] = False
        return group.without(dropped_B)


@dataclass(frozen=True, kw_only=True)
class Truncate:
    """Trains the first tokens of each response; the rest is not even read by the update.

    The text of the response, its rewards, and the reason why it ended stay as they are. Rewards of
    later tokens stay in the total reward.

    Attributes:
      most: the number of tokens to train, from the first token of the response.
    """

    most: Positive

    def __call__(self, group: Group) -> Group:
        trajectories, rewards = group.trajectories, group.rewards
        mask_BT = np.asarray(trajectories.response_mask_BT)
        kept_BT = mask_BT & (np.cumsum(mask_BT, axis=1) <= self.most)
        lost_BT = np.cumsum(mask_BT & ~kept_BT, axis=1) > 0  # from the first such token on
        if not lost_BT.any():
            return group
        tokens_BT = rewards.tokens_BT
        return replace(
            group,
            trajectories=replace(
                trajectories,
                response_mask_BT=kept_BT,
                segment_ids_BT=np.where(lost_BT, 0, trajectories.segment_ids_BT),
                behaviour_logprobs_BT=np.where(kept_BT, trajectories.behaviour_logprobs_BT, 0),
                policy_version_BT=np.where(kept_BT, trajectories.policy_version_BT, -1),
            ),
            rewards=replace(
                rewards, tokens_BT=None if tokens_BT is None else np.where(kept_BT, tokens_BT, 0)
            ),
        )


def transformed(
    transforms: Mapping[str, Transform], policy: Policy, collected: Collected
) -> Collected:
    """Returns the groups of a step after each transform, in the same shapes.

    Raises:
      RunError: a transform returns no group of the same shape, or leaves no token to train on.
    """
    trajectories, rewards = to_host((collected.trajectories, collected.rewards))
    groups = divided(trajectories, collected.episodes, rewards)

    def arrays_of(group: Group) -> Any:
        """Returns the shapes and dtypes of the trajectories and the rewards of a group."""
        trajectories, rewards = group.trajectories, group.rewards
        arrays = jax.tree.leaves((trajectories, rewards.total_B, rewards.valid_B))
        return [(np.shape(x), np.asarray(x).dtype) for x in arrays]

    def trains(group: Group) -> bool:
        """Returns whether a group has a token in the loss."""
        mask_BT, valid_B = group.trajectories.response_mask_BT, group.rewards.valid_B
        return bool(np.any(mask_BT & valid_B[:, None]))

    for name, transform in transforms.items():
        before, groups, key = groups, [], f"transforms.{name}"
        for group in before:
            result, samples = transform(group), len(group.episodes)
            if not isinstance(result, Group):
                refuse(key, transform, "rl4p.base.types.Group", f"not {described(result)}")
            if arrays_of(result) != arrays_of(group) or len(result.episodes) != samples:
                expected = f"the {samples} samples of its group with their shapes and dtypes"
                refuse(key, transform, expected, "not others")
            groups.append(result)
        if any(map(trains, before)) and not any(map(trains, groups)):
            raise RunError(
                f"transforms.{name} left no token to train on in a batch of {len(groups)} groups: "
                "weaken it, or let the collector replace groups (collector=dynamic_sampling)."
            )
    trajectories, episodes, rewards = joined(groups, policy.pad_id)
    trajectories, rewards = policy.mesh.shard_rows((trajectories, rewards))
    return replace(collected, trajectories=trajectories, episodes=episodes, rewards=rewards)
