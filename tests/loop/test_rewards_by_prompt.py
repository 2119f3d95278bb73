import numpy as np

from rl4p.base.types import Episode, Rewards
from rl4p.loop.rewards_by_prompt import rewards_by_prompt


def test_rewards_are_grouped_by_prompt_without_invalid_samples(make_prompt):
    a, b = make_prompt(id="a"), make_prompt(id="b")
    episodes = [Episode(prompt=prompt, response="") for prompt in (b, a, b, a)]
    rewards = Rewards(
        total_B=np.float32([1, 2, 3, 4]),
        terms={"correct": np.float32([0, np.nan, 1, 0])},
        valid_B=np.array([True, True, False, True]),
    )
    found = list(rewards_by_prompt(episodes, rewards))
    assert [prompt for prompt, _ in found] == [b, a]
    assert [rewards_G.tolist() for _, rewards_G in found] == [[1], [2, 4]]
    of_term = list(rewards_by_prompt(episodes, rewards, "correct"))
    assert [rewards_G.tolist() for _, rewards_G in of_term] == [[0], [0]]
