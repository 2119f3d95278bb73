"""The rewards that an environment gave: their sum, and each at the last token of its turn."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rl4p.base.types import Episode, Rewards, Trajectories
from rl4p.distributed.processes import to_host
from rl4p.protocols.reward import ByTurn


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


def with_turn_rewards(
    rewards: Rewards,
    trajectories: Trajectories,
    episodes: Sequence[Episode],
    terms_of: Callable[[Episode], Mapping[str, Any]],
) -> Rewards:
    """Returns the rewards with `tokens_BT` if a term grades by turn (`ByTurn`).

    The last turn has no entry: its token receives what the others leave of the total. In an episode
    with roles it has one, and what is left belongs to all of them.

    Args:
      terms_of: returns the terms that grade an episode, by name.
    """
    terms_B = [
        [term for term in terms_of(each).values() if isinstance(term, ByTurn)] for each in episodes
    ]
    if not any(terms_B):
        return rewards
    mask_BT = np.asarray(to_host(trajectories.response_mask_BT))
    tokens_BT = np.zeros(mask_BT.shape, np.float32)
    for row in np.flatnonzero(rewards.valid_B).tolist():
        chosen = np.flatnonzero(mask_BT[row])
        roles = any(turn.role for turn in episodes[row].turns)
        places = episodes[row].turn_places
        ends = [max(place.stop - 1, 0) for place in (places if roles else places[:-1])]
        for term in terms_B[row]:
            for end, reward in zip(ends, term.by_turn(episodes[row]), strict=False):
                tokens_BT[row, chosen[end]] += term.weight * reward
    return replace(rewards, tokens_BT=tokens_BT)
