"""Tests the rewards of turns at tokens."""

from dataclasses import replace

import numpy as np

from rl4p.base.types import Episode, Turn
from rl4p.learner.masking import returns_to_go
from rl4p.loop.phases import without_failures
from rl4p.reward.router import Router
from rl4p.reward.turn_rewards import EpisodeReward
from rl4p.reward.weighted import Weighted


def test_the_rewards_of_the_turns_are_summed(make_prompt):
    turns = tuple(Turn(text="t", tokens=1, reward=reward) for reward in (0.5, -0.25, 1.0))
    episodes = [
        Episode(prompt=make_prompt(), response="t", turns=turns),
        Episode(prompt=make_prompt(), response="t", turns=turns[:1]),
        Episode(prompt=make_prompt(), response="t"),  # without an environment
    ]
    assert EpisodeReward()(episodes) == [1.25, 0.5, None]


def test_each_turn_is_rewarded_at_its_last_token(make_prompt, make_trajectories):
    """Rows of turns of 2, 1 and 3 tokens; the last turn gets what the others leave."""
    trajectories = make_trajectories((8, 8, 8, 8))
    mask = np.asarray(trajectories.response_mask_BT).copy()
    mask[:, [10, 12]] = False
    trajectories = replace(trajectories, response_mask_BT=mask)
    turns = tuple(
        Turn(text="t", tokens=tokens, reward=reward)
        for tokens, reward in ((2, 0.5), (1, -0.25), (3, 1.0))
    )
    prompts = [make_prompt(task=task) for task in ("game", "game", "sums", "game")]
    episodes = [Episode(prompt=prompt, response="t", turns=turns) for prompt in prompts]
    episodes[1] = replace(episodes[1], turns=turns[:1])
    episodes[3] = replace(episodes[3], turns=())  # no term applies
    game = Weighted(terms={"episode_reward": EpisodeReward(weight=2.0)})
    rewards = Router(tasks={"game": game, "sums": Weighted(terms={"short": Short()})})(
        trajectories, episodes
    )
    expected = np.zeros(mask.shape)
    expected[0, [9, 11]] = 1.0, -0.5
    np.testing.assert_array_equal(rewards.tokens_BT, expected)
    assert rewards.total_B.tolist() == [2.5, 1.0, 1.0, 0.0]
    assert rewards.valid_B.tolist() == [True, True, True, False]
    np.testing.assert_array_equal(game(trajectories, episodes).tokens_BT[:2], expected[:2])
    to_go = np.asarray(returns_to_go(trajectories, rewards))
    assert to_go[0, 8:16].tolist() == [2.5, 2.5, 0, 1.5, 0, 2.0, 2.0, 2.0]
    failed = [replace(episodes[0], failure="lost"), *episodes[1:]]
    assert not without_failures(rewards, failed).tokens_BT.any()


class Short:
    weight = 1.0

    def __call__(self, episodes):
        return [1.0] * len(episodes)


def test_texts_have_no_rewards_of_tokens(make_prompt):
    turns = (Turn(text="t", tokens=1, reward=1.0),) * 2
    episodes = [Episode(prompt=make_prompt(), response="t", turns=turns)]
    graded = Weighted(terms={"episode_reward": EpisodeReward()}).grade_texts(episodes)
    assert graded.tokens_BT is None
