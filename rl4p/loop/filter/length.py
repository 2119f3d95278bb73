"""A filter that keeps groups with responses of a suitable length."""

from dataclasses import dataclass

import numpy as np

from rl4p.base.types import Group
from rl4p.configuration.bounds import Natural, Positive


@dataclass(frozen=True, kw_only=True)
class Length:
    """Keeps a group if the mean length of its responses is between two limits.

    Attributes:
      least, most: the limits in tokens, both included; None is no limit.
    """

    least: Natural = 0
    most: Positive | None = None

    def __post_init__(self) -> None:
        if not self.least and self.most is None:
            raise ValueError("a length needs a limit, or it keeps every group: set least or most.")
        if self.most is not None and self.least > self.most:
            raise ValueError(f"least={self.least} is more than most={self.most}.")

    def __call__(self, group: Group) -> bool:
        mean = float(np.sum(group.trajectories.response_mask_BT, axis=1).mean())
        return self.least <= mean and (self.most is None or mean <= self.most)
