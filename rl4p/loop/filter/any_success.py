"""A filter that keeps groups with a right sample."""

from dataclasses import dataclass

from rl4p.base.types import Group


@dataclass(frozen=True, kw_only=True)
class AnySuccess:
    """Keeps a group if at least one of its samples is right.

    Attributes:
      term: the reward term that is at least 1 for a right sample; None for the total reward.
    """

    term: str | None = "correct"

    def __call__(self, group: Group) -> bool:
        return bool(group.right(self.term).any())
