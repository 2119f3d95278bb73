"""A transform that trains only the beginning of each response."""

from dataclasses import dataclass, replace

import numpy as np

from rl4p.base.types import Group
from rl4p.configuration.bounds import Positive


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
