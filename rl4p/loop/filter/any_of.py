"""A filter that keeps groups which at least one of several filters keeps."""

from collections.abc import Mapping
from dataclasses import dataclass

from rl4p.base.types import Group
from rl4p.protocols.collection import Filter


@dataclass(frozen=True, kw_only=True)
class AnyOf:
    """Keeps a group if at least one of its filters keeps it. A collector's filters must all do.

    Attributes:
      filters: filters by name.
    """

    filters: Mapping[str, Filter]

    def __post_init__(self) -> None:
        if len(self.filters) < 2:
            raise ValueError(
                "any_of needs at least two filters: +filter@collector.filters.any_of.filters.NAME="
                "OPTION for each."
            )

    def __call__(self, group: Group) -> bool:
        return any(keeps(group) for keeps in self.filters.values())
