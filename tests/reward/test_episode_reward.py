"""Tests the reward of an environment as a term."""

from rl4p.base.types import Episode, Turn
from rl4p.reward.episode_reward import EpisodeReward


def test_the_rewards_of_the_turns_are_summed(make_prompt):
    turns = tuple(Turn(text="t", tokens=1, reward=reward) for reward in (0.5, -0.25, 1.0))
    episodes = [
        Episode(prompt=make_prompt(), response="t", turns=turns),
        Episode(prompt=make_prompt(), response="t", turns=turns[:1]),
        Episode(prompt=make_prompt(), response="t"),  # without an environment
    ]
    assert EpisodeReward()(episodes) == [1.25, 0.5, None]
