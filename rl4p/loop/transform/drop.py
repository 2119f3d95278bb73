"""A transform that drops groups."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rl4p.base.types import Group
from rl4p.protocols.collection import Filter


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
