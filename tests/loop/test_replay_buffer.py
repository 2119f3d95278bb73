import json
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from rl4p.loop.replay_buffer import Entry, ReplayBuffer, content_key
from rl4p.runs.checkpoint import with_arrays, without_arrays


@pytest.fixture(scope="module")
def prompt(make_prompt):
    def prompt(name, **fields):
        return make_prompt(**{"id": name, "question": f"question {name}"} | fields)

    return prompt


def generator(seed=0):
    return np.random.default_rng(seed)


@given(rewards=st.lists(st.floats(-10, 10), min_size=1, max_size=30))
def test_running_statistics_are_those_of_all_rewards(rewards):
    entry = Entry(id="a")
    for reward in rewards:
        entry.add(reward)
    assert entry.count == len(rewards)
    assert entry.mean == pytest.approx(np.mean(rewards), abs=1e-9)
    assert entry.deviation == pytest.approx(np.std(rewards), abs=1e-6)


def test_rewards_that_are_not_finite_are_0():
    entry = Entry(id="a")
    for reward in (1.0, math.nan, math.inf, -math.inf):
        entry.add(reward)
    assert (entry.count, entry.mean) == (4, 0.25)


def test_a_full_buffer_takes_only_what_is_strictly_better(prompt):
    buffer = ReplayBuffer(2, "mean", 0.0)
    buffer.update(prompt("a"), [0.5])
    buffer.update(prompt("b"), [0.25])
    buffer.update(prompt("c"), [0.25])  # not better than the worst
    assert [entry.id for entry in buffer.entries.values()] == ["a", "b"]
    buffer.update(prompt("d"), [0.26])
    assert [entry.id for entry in buffer.entries.values()] == ["a", "d"]
    buffer.update(prompt("b"), [0.9])  # it was forgotten, so this is its only reward
    (entry,) = [x for x in buffer.entries.values() if x.id == "b"]
    assert (entry.count, entry.mean) == (1, 0.9)
    assert len(buffer.entries) == 2


def test_more_rewards_of_a_prompt_are_added_to_its_own(prompt):
    buffer = ReplayBuffer(1, "mean", 0.0)
    buffer.update(prompt("a"), [1.0, 0.0])
    buffer.update(prompt("a"), [0.0, 0.0])
    (entry,) = buffer.entries.values()
    assert (entry.count, entry.mean) == (4, 0.25)
    buffer.update(prompt("b"), [])  # all samples were invalid
    assert len(buffer.entries) == 1


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"question": "  QUESTION\n a "}, True),
        ({"question": "question \uff41"}, True),  # a full-width letter
        ({"question": "question b"}, False),
        ({"messages": ({"role": "system", "content": "question a"},)}, False),
        ({"system_prompt": "Be short."}, False),
        ({"id": "other", "answer": "2"}, True),
        ({"metadata": {"board": 1}}, False),
        ({"tools": ({"name": "add"},)}, False),
        ({"messages": ({"role": "user", "content": "Question A"},)}, True),
        ({"messages": ({"role": "user", "content": "question a", "name": "Ada"},)}, False),
    ],
)
def test_prompts_are_equal_by_role_and_normalised_content(prompt, change, same):
    assert (content_key(prompt("a", **change)) == content_key(prompt("a"))) is same


def test_the_largest_upper_confidence_bound_is_drawn(prompt):
    buffer = ReplayBuffer(3, "mean", 1.0)
    buffer.update(prompt("often"), [0.5] * 20)
    buffer.update(prompt("seldom"), [0.4] * 2)
    buffer.update(prompt("worse"), [0.1] * 20)
    bonus = [math.sqrt(2 * math.log(42) / count) for count in (20, 2)]
    assert 0.5 + bonus[0] < 0.4 + bonus[1]
    assert buffer.draw(3, 1.0, generator()) == ["seldom", "often", "worse"]
    greedy = ReplayBuffer(3, "mean", 0.0)
    greedy.entries = buffer.entries
    assert greedy.draw(2, 1.0, generator()) == ["often", "seldom"]


def test_the_bound_has_the_number_of_all_rewards(prompt):
    """With N = 52 the seldom one has the larger bound, and with N = 2 or 3 prompts it has not."""
    buffer = ReplayBuffer(2, "mean", 0.26)
    buffer.update(prompt("often"), [0.9] * 50)
    buffer.update(prompt("seldom"), [0.5] * 2)

    def largest(total):
        bounds = [
            mean + 0.26 * math.sqrt(2 * math.log(total) / count)
            for mean, count in ((0.9, 50), (0.5, 2))
        ]
        return ("often", "seldom")[bounds[1] > bounds[0]]

    assert [largest(total) for total in (2, 50, 52)] == ["often", "seldom", "seldom"]
    assert buffer.draw(1, 1.0, generator()) == ["seldom"]


def test_other_draws_are_uniform_and_without_repetition(prompt):
    buffer = ReplayBuffer(4, "mean", 1.0)
    for name in "abcd":
        buffer.update(prompt(name), [float(name == "a")])
    drawn = [buffer.draw(2, 0.0, generator(seed)) for seed in range(400)]
    assert all(len(set(pair)) == 2 for pair in drawn)
    counts = [sum(name in pair for pair in drawn) for name in "abcd"]
    assert all(150 < count < 250 for count in counts)
    without = {content_key(prompt(name)) for name in "ab"}
    assert set(buffer.draw(9, 0.5, generator(), without=without)) == {"c", "d"}


def test_the_deviation_prefers_prompts_that_differ(prompt):
    buffer = ReplayBuffer(2, "deviation", 0.0)
    buffer.update(prompt("solved"), [1.0, 1.0])
    buffer.update(prompt("open"), [1.0, 0.0])
    assert buffer.draw(1, 1.0, generator()) == ["open"]
    buffer.update(prompt("half"), [0.5, 0.0])
    assert {entry.id for entry in buffer.entries.values()} == {"open", "half"}


@pytest.mark.slow
def test_the_regret_of_upper_confidence_bounds_is_below_that_of_uniform_draws(prompt):
    """Tests 20 arms with chances of success from 0 to 0.95, over 2,000 draws and five seeds."""
    chances = np.arange(20) / 20

    def regret(exploit, seed):
        random, buffer, lost = generator(seed), ReplayBuffer(20, "mean", 0.5), 0.0
        for arm in range(20):
            buffer.update(prompt(str(arm)), [float(random.random() < chances[arm])])
        for _ in range(2000):
            (name,) = buffer.draw(1, exploit, random)
            buffer.update(prompt(name), [float(random.random() < chances[int(name)])])
            lost += chances.max() - chances[int(name)]
        return lost

    for seed in range(5):
        assert regret(1.0, seed) < 0.5 * regret(0.0, seed)


def test_a_restored_buffer_draws_alike(prompt):
    buffer = ReplayBuffer(5, "deviation", 0.5)
    for i in range(8):
        buffer.update(prompt(str(i)), generator(i).random(i % 4).tolist())
    arrays = {}
    state = json.loads(json.dumps(without_arrays(buffer.state(), arrays)))
    restored = ReplayBuffer(5, "deviation", 0.5)
    restored.restore(with_arrays(state, arrays))
    assert restored.entries == buffer.entries
    assert restored.draw(4, 0.5, generator()) == buffer.draw(4, 0.5, generator())
    empty = ReplayBuffer(5, "mean", 0.5)
    empty.restore(ReplayBuffer(5, "mean", 0.5).state())
    assert len(empty.entries) == 0
