"""The reward that an environment gave."""

from collections.abc import Sequence
from dataclasses import dataclass

from rl4p.base.types import Episode


@dataclass(frozen=True, kw_only=True)
class EpisodeReward:
    """The sum of the rewards of an episode's turns (`rollout=environment`).

    Each reward is given to the last token of its turn (`Rewards.tokens_BT`), for advantages that
    read the rewards of tokens or turns.

    It does not apply to a sample without turns. A sample whose environment failed is invalid
    whatever its terms are.
    """

    weight: float = 1.0

    def __call__(self, episodes: Sequence[Episode]) -> Sequence[float | None]:
        return [sum(self.by_turn(episode)) if episode.turns else None for episode in episodes]

    def by_turn(self, episode: Episode) -> Sequence[float]:
        return [turn.reward for turn in episode.turns]
