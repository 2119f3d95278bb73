"""The tags that a response should have."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from rl4p.base.types import Episode
from rl4p.data.extraction import TAGS, tagged_text


@dataclass(frozen=True, kw_only=True)
class Tags:
    """The share of the required tags that occur exactly once and in the required order.

        grade = (length of the longest increasing sequence of tags) / (number of tags)

    Tags that are absent or occur several times, overlapping ones too, do not count. Tags that the
    chat template wrote at the end of the prompt belong to the response. The others are put in the
    order in which they stand in the response, and the longest part of it that agrees with the
    required order counts: of `<a>`, `</a>`, `<b>`, the response `<a> <b> </a>` has two in order, a
    grade of 2/3.

    Attributes:
      tags: the tags in the order that is required.
    """

    weight: float = 0.5
    tags: tuple[str, ...] = TAGS

    def __post_init__(self) -> None:
        if not self.tags or "" in self.tags or len(set(self.tags)) < len(self.tags):
            raise ValueError(
                f"tags={list(self.tags)} must be different texts, at least one: write "
                "['<answer>','</answer>']."
            )
        inside = [(a, b) for a in self.tags for b in self.tags if a != b and a in b]
        if inside:
            raise ValueError(
                f"tags has {inside[0][0]}, which is also part of {inside[0][1]} and would occur "
                "twice: write tags that do not contain each other."
            )

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float]:
        return [self.grade(tagged_text(episode, self.tags)) for episode in episodes]

    def grade(self, text: str) -> float:
        places = [
            place
            for tag in self.tags
            if (place := text.find(tag)) >= 0 and text.find(tag, place + 1) < 0
        ]
        ends: list[int] = []  # of the shortest-ending increasing sequence of each length
        for place in places:
            ends[bisect_left(ends, place) : bisect_left(ends, place) + 1] = [place]
        return len(ends) / len(self.tags)
