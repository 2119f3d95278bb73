"""A reward that differs between the responses of a model with random parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

from rl4p.base.types import Episode


@dataclass(frozen=True, kw_only=True)
class Characters:
    """The number of characters of a response, modulo 7."""

    weight: float = 1.0

    def __call__(self, episodes: Sequence[Episode]) -> list[float]:
        return [float(len(episode.response) % 7) for episode in episodes]
