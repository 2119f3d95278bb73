"""Tests the seeds of episodes; tests/rollout/test_environment.py and test_agent.py run them."""

from dataclasses import replace

import numpy as np

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
