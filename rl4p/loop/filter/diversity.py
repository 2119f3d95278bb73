"""A filter that keeps groups with enough different responses."""

from dataclasses import dataclass

from rl4p.base.types import Group
from rl4p.configuration.bounds import TopShare


@dataclass(frozen=True, kw_only=True)
class Diversity:
    """Keeps a group if enough of its responses have different texts.

    Attributes:
      least: the least number of different responses, divided by the number of samples.
    """

    least: TopShare = 0.5

    def __call__(self, group: Group) -> bool:
        texts = [episode.response.strip() for episode in group.episodes]
        return len(set(texts)) >= self.least * len(texts)
