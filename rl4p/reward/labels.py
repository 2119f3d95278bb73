"""The reward of responses that a data set calls good or bad."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Episode, Rewards, Trajectories


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Reward 1 for a response whose row has a true label, and -1 for one with a false label.

    The rows have TRL's form `{"prompt": ..., "completion": ..., "label": true}`. The responses are
    those of `rollout=demonstrations`; a rollout that samples is refused.

    Attributes:
      key: the field with the label, true or false (or 1 or 0), which `data.metadata_keys` names.
    """

    labels: ClassVar[bool] = True

    key: str = "label"

    def __call__(self, trajectories: Trajectories, episodes: Sequence[Episode]) -> Rewards:
        labels = [each.prompt.metadata.get(self.key) for each in episodes]
        for episode, label in zip(episodes, labels, strict=True):
            if label not in (0, 1):  # as are False and True
                raise InputError(
                    f"reward=labels needs true or false in the field {self.key} of each row, but "
                    f"that of {episode.prompt.id} is {label!r}: set data.metadata_keys="
                    f"[{self.key}], or name the field in reward.key."
                )
        total_B = np.where(np.array(labels, bool), 1.0, -1.0).astype(np.float32)
        return Rewards(total_B=total_B, terms={}, valid_B=np.ones(len(total_B), bool))
