"""Tests that a step repeats at most its share of earlier prompts, under any collector."""

from dataclasses import dataclass, replace

import jax
import pytest

from rl4p.learner.optimizer import AdamW
from rl4p.loop.cache import SuccessCache
from rl4p.loop.collector.asynchronous import Asynchronous
from rl4p.loop.collector.dynamic_sampling import DynamicSampling
from rl4p.loop.collector.lagged import Lagged
from rl4p.loop.collector.synchronous import Synchronous
from rl4p.loop.filter import Deviation
from rl4p.loop.source.curriculum import Curriculum
from rl4p.loop.source.easy_pool import EasyPool
from rl4p.loop.source.mixture import Mixture
from rl4p.loop.source.quota import Quota
from rl4p.loop.source.replay import Replay
from rl4p.reward.weighted import Weighted
from rl4p.rollout.continuous import Continuous

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


@pytest.mark.parametrize("name", COLLECTORS)
@pytest.mark.parametrize("share", [0.5, 0.3])
def test_a_step_repeats_at_most_its_share(replayed, stream, name, share):
    options = Replay(source=stream, least=4, share=share, value="mean", exploit=0.8)
    numbers = replayed(COLLECTORS[name], options)
    assert max(numbers) <= 2  # 0.3 of 4 prompts is 1 or 2 of them
    assert sum(numbers) >= 4


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
