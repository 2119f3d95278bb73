"""The call of the transforms, which change graded groups before the advantage phase."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from rl4p.base.errors import RunError
from rl4p.base.types import Group
from rl4p.distributed.processes import to_host
from rl4p.learner.phase_results import described, refuse
from rl4p.loop.groups import divided, joined
from rl4p.model.policy import Policy
from rl4p.protocols.collection import Collected, Transform


def transformed(
    transforms: Mapping[str, Transform], policy: Policy, collected: Collected
) -> Collected:
    """Returns the groups of a step after each transform, in the same shapes.

    Raises:
      RunError: a transform returns no group of the same shape, or leaves no token to train on.
    """
    trajectories, rewards = to_host((collected.trajectories, collected.rewards))
    groups = divided(trajectories, collected.episodes, rewards)
    for name, transform in transforms.items():
        before, groups = groups, [called(name, transform, group) for group in groups]
        if any(map(trains, before)) and not any(map(trains, groups)):
            raise RunError(
                f"transforms.{name} left no token to train on in a batch of {len(groups)} groups: "
                "weaken it, or let the collector replace groups (collector=dynamic_sampling)."
            )
    trajectories, episodes, rewards = joined(groups, policy.pad_id)
    trajectories, rewards = policy.mesh.shard_rows((trajectories, rewards))
    return replace(collected, trajectories=trajectories, episodes=episodes, rewards=rewards)


def called(name: str, transform: Transform, group: Group) -> Group:
    """Calls a transform and checks that the shapes are the same.

    Raises:
      RunError: they are not, or it returns no group.
    """
    key, result = f"transforms.{name}", transform(group)
    if not isinstance(result, Group):
        refuse(key, transform, "rl4p.base.types.Group", f"not {described(result)}")
    if arrays_of(result) != arrays_of(group) or len(result.episodes) != len(group.episodes):
        expected = f"the {len(group.episodes)} samples of its group with their shapes and dtypes"
        refuse(key, transform, expected, "not others")
    return result


def arrays_of(group: Group) -> Any:
    """Returns the shapes and dtypes of the trajectories and the rewards of a group."""
    trajectories, rewards = group.trajectories, group.rewards
    arrays = jax.tree.leaves((trajectories, rewards.total_B, rewards.valid_B))
    return [(np.shape(x), np.asarray(x).dtype) for x in arrays]


def trains(group: Group) -> bool:
    """Returns whether a group has a token in the loss."""
    mask_BT, valid_B = group.trajectories.response_mask_BT, group.rewards.valid_B
    return bool(np.any(mask_BT & valid_B[:, None]))
