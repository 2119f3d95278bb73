"""Tests the seeds of episodes and the option of their number.

tests/rollout/test_environment.py and test_agent.py run episodes.
"""

from dataclasses import replace

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.rollout.episodes import seed_of, seed_of_prompt


def test_seeds_are_natural_numbers_below_two_to_the_31():
    keys = np.random.default_rng(0).integers(0, 2**32, (100, 4), np.uint32)
    seeds = [seed_of(key) for key in keys]
    assert len(set(seeds)) == 100
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_the_seed_of_a_prompt_depends_on_its_task_and_id_alone(make_prompt):
    prompt = make_prompt()
    assert seed_of_prompt(prompt) == seed_of_prompt(replace(prompt, question="other", tokens=(5,)))
    others = (replace(prompt, id="b"), replace(prompt, task="other"))
    assert len({seed_of_prompt(each) for each in (prompt, *others)}) == 3
    assert 0 <= seed_of_prompt(prompt) < 2**31


GAME = (
    "rollout=environment",
    "+environment@rollout.environment=gymnasium",
    "rollout.environment.factory._target_=rl4p.rollout.environments.games.Guess",
)


def test_the_number_of_episodes_may_have_two_bounds():
    rollout = instantiate(compose([*GAME, "rollout.concurrency=[4,64]"]).rollout)
    assert (rollout.concurrency, rollout.most_at_a_time) == ((4, 64), 64)
    assert rollout.metrics() == {"rollout/concurrency": 4.0}
    for fixed in ("8", "null"):
        assert not instantiate(compose([*GAME, f"rollout.concurrency={fixed}"]).rollout).metrics()


@pytest.mark.parametrize("given", ["[64, 4]", "[0, 4]", "[1, 2, 3]", "[4]", "[]", "0", "-1"])
def test_other_bounds_are_refused_in_one_sentence(given):
    config = compose([*GAME, f"rollout.concurrency={given}", "rollout.max_failed=0.1"])
    with pytest.raises(InputError) as refused:
        instantiate(config.rollout)
    assert str(refused.value) == (
        f"rollout.concurrency={given} must be a number from 1 on, or two of them, the smaller one "
        "first, such as [4,64]."
    )
