"""Tests sets of prompts: properties, schedules, the share of repeated ones."""

from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Episode, Rewards
from rl4p.learner.optimizer import AdamW
from rl4p.loop.cache import SuccessCache
from rl4p.loop.collector.asynchronous import Asynchronous
from rl4p.loop.collector.dynamic_sampling import DynamicSampling
from rl4p.loop.collector.lagged import Lagged
from rl4p.loop.collector.synchronous import Synchronous
from rl4p.loop.filter import Deviation
from rl4p.loop.prompts import (
    Quota,
    check_points,
    matches,
    property_of,
    rewards_by_prompt,
    rounded,
    split_by,
    value_at,
)
from rl4p.loop.source import Curriculum, EasyPool, Mixture, Replay
from rl4p.reward.weighted import Weighted
from rl4p.rollout.continuous import Continuous


@pytest.fixture
def prompt(make_prompt):
    return make_prompt(id="x", task="sums", metadata={"level": 2})


def test_properties_are_the_task_the_id_and_the_metadata(prompt):
    assert [property_of(prompt, name) for name in ("task", "id", "level")] == ["sums", "x", 2]
    with pytest.raises(InputError, match="x has no size: choose one of task, id, level"):
        property_of(prompt, "size")


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({"level": 2}, True),
        ({"level": [1, 2]}, True),
        ({"level": 1}, False),
        ({"task": "sums", "level": (2,)}, True),
        ({"task": "other", "level": 2}, False),
    ],
)
def test_all_properties_must_match(prompt, where, found):
    assert matches(prompt, where) is found


def test_prompts_are_split_in_their_order(make_prompt):
    prompts = [make_prompt(id=str(i), metadata={"level": i % 2}) for i in range(4)]
    assert split_by(prompts, "level") == {"0": prompts[::2], "1": prompts[1::2]}


def test_a_number_is_rounded_by_chance_and_right_on_average():
    assert {rounded(3.0, 0, seed) for seed in range(50)} == {3}
    found = [rounded(2.25, 0, seed) for seed in range(2000)]
    assert set(found) == {2, 3}
    assert abs(sum(found) / 2000 - 2.25) < 0.03


@pytest.mark.parametrize(
    ("step", "value"), [(0, 1.0), (10, 1.0), (15, 0.75), (20, 0.5), (25, 1.5), (30, 2.5), (99, 2.5)]
)
def test_values_are_linear_between_points_and_constant_outside(step, value):
    assert value_at([[10, 1.0], [20, 0.5], [30, 2.5]], step) == value


def test_one_point_is_a_constant():
    assert [value_at([[5, 0.25]], step) for step in (0, 5, 9)] == [0.25] * 3


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "must be pairs"),
        ([[0, 1, 2]], "must be pairs"),
        ([[5, 1], [5, 0]], "must rise"),
        ([[5, 1], [3, 0]], "must rise"),
        ([[-1, 1]], "must rise, from 0"),
        ([[0, 1.5]], r"p has the value 1.5, which is not in \[0, 1\]"),
        ([[0, -0.5]], "not in"),
        ([[0, float("nan")]], "not in"),
    ],
)
def test_points_that_are_no_schedule_are_refused(points, message):
    with pytest.raises(ValueError, match=message):
        check_points("p", points, 0, 1)
    check_points("p", [[0, 0.0], [3, 1.0]], 0, 1)


P, G = 4, 2


@dataclass(frozen=True, kw_only=True)
class OnReplay:
    """A term that differs in a group whose prompt is repeated, and in few others."""

    weight: float = 1.0

    def __call__(self, episodes):
        return [
            float(number % 2 and (each.prompt.drawn_by is not None or int(each.prompt.id) % 5 == 0))
            for number, each in enumerate(episodes)
        ]


FILTERS = {"deviation": Deviation()}
CACHE = SuccessCache()
COLLECTORS = {
    "synchronous": Synchronous(),
    "lagged": Lagged(lag=1),
    "filters": DynamicSampling(filters=FILTERS),
    "drop": DynamicSampling(filters=FILTERS, otherwise="drop", rounds=2),
    "cache": DynamicSampling(filters=FILTERS, cache=CACHE),
    "more_prompts": DynamicSampling(filters=FILTERS, over_sampling=2.0, cache=CACHE),
    "asynchronous": Asynchronous(ahead=1),
    "asynchronous_filters": Asynchronous(ahead=1, filters=FILTERS, cache=CACHE),
    "at_once": Asynchronous(ahead=0, filters=FILTERS, rounds=5),
    "over_sampling": Asynchronous(
        ahead=1, over_sampling=1.5, filters=FILTERS, late="restart", cache=CACHE
    ),
}


@pytest.fixture
def replayed(policy, params, make_prompts, make_phases, make_state):
    """The numbers of repeated prompts in the steps of a run without updates."""

    def replayed(collector, options, steps=14):
        source = options.open(make_prompts(24), seed=0)
        phases = make_phases(
            rollout=Continuous(max_response_tokens=4),
            reward=Weighted(terms={"correct": OnReplay()}),
        )
        opened = collector.open(phases, policy, source, prompts_per_step=P, group_size=G)
        state = make_state(params, AdamW(learning_rate=1e-2))
        numbers = []
        try:
            for step in range(steps):
                collected = opened.collect(replace(state, step=jax.numpy.int32(step)))
                drawn = [episode.prompt.drawn_by for episode in collected.episodes[::G]]
                numbers.append(drawn.count("replay"))
        finally:
            opened.close()
        return numbers

    return replayed


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", COLLECTORS)
@pytest.mark.parametrize("share", [pytest.param(0.5, marks=pytest.mark.slow), 0.3])
def test_a_step_repeats_at_most_its_share(replayed, stream, name, share):
    options = Replay(source=stream, least=4, share=share, value="mean", exploit=0.8)
    numbers = replayed(COLLECTORS[name], options)
    assert max(numbers) <= 2  # 0.3 of 4 prompts is 1 or 2 of them
    assert sum(numbers) >= 4


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "around",
    [
        lambda replay: Curriculum(source=replay, by="level"),
        lambda replay: Mixture(source=replay, weights={"task0": [[0, 1]], "task1": [[0, 1]]}),
        lambda replay: EasyPool(source=replay, easy={"level": 0}, probability=[[0, 0.5]]),
    ],
    ids=["curriculum", "mixture", "easy_pool"],
)
def test_a_source_around_a_replay_keeps_to_the_share(replayed, stream, around):
    replay = Replay(source=stream, least=2, share=0.5, value="mean")
    numbers = replayed(COLLECTORS["more_prompts"], around(replay))
    assert max(numbers) <= 2
    assert sum(numbers) >= 2


@pytest.mark.slow
def test_a_share_is_right_on_average_over_the_rounds_of_a_step(make_prompts, stream, credit):
    prompts = make_prompts()
    source = Replay(source=stream, share=0.3, least=1).open(prompts, seed=0)
    credit(source, prompts, [[0, 1]] * 40)
    numbers = []
    for step in range(600):
        quota = Quota(source, 4)
        taken = [prompt for count in (4, 2, 2) for prompt in quota.take(count, step)]
        numbers.append([prompt.drawn_by for prompt in taken].count("replay"))
        credit(source, taken, [[0, 1]] * 8)
    assert set(numbers) == {1, 2}
    assert 1.1 < sum(numbers) / 600 < 1.3


@pytest.mark.slow
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
