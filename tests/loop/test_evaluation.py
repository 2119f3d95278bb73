"""Tests that each held-out question counts once, by the term that decides correctness."""

from dataclasses import dataclass, field, replace

import jax
import numpy as np
import pytest

from rl4p.errors import InputError
from rl4p.learner.optimizer.adamw import AdamW
from rl4p.loop.evaluation import Evaluation, greedy_rewards
from rl4p.reward.weighted import Weighted
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.types import StepInfo


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A term: 1 for prompts with the ids of `right`, None for those of `broken`, otherwise 0."""

    right: tuple[str, ...]
    broken: tuple[str, ...] = ()
    weight: float = 1.0

    def __call__(self, episodes):
        return [
            None if prompt.id in self.broken else float(prompt.id in self.right)
            for prompt in (episode.prompt for episode in episodes)
        ]


@pytest.fixture
def evaluate(policy, params, make_prompt, make_state, make_phases):
    def run(tasks, *, rows, term="correct", kind=Listed, **listed):
        prompts = [
            make_prompt(tokens=(257, 65 + i), id=str(i), task=task) for i, task in enumerate(tasks)
        ]
        # All responses get the second term, which has a large weight: the sum must not matter.
        terms = {"correct": kind(**listed), "style": Listed(right=tuple("01234"), weight=100.0)}
        evaluation = Evaluation(
            every=1,
            phases=make_phases(
                rollout=NaiveSampler(max_response_tokens=8),
                reward=Weighted(terms=terms, max_invalid=1.0),
            ),
            policy=policy,
            prompts=prompts,
            term=term,
            rows=rows,
        )
        return evaluation.evaluate(make_state(params, AdamW()))

    return run


@pytest.mark.parametrize("rows", [2, 8])
def test_questions_count_once_whatever_is_sampled_at_a_time(evaluate, rows):
    found = evaluate(["a", "a", "b", "a", "b"], rows=rows, right=("0", "4"))
    assert found == {
        "eval/a/pass_at_1": 1 / 3,
        "eval/b/pass_at_1": 1 / 2,
        "eval/a/prompts": 3.0,
        "eval/b/prompts": 2.0,
    }


def test_what_cannot_be_graded_is_not_right(evaluate):
    found = evaluate(["a", "a"], rows=2, right=("0", "1"), broken=("1",))
    assert found["eval/a/pass_at_1"] == 0.5


def test_a_term_that_the_reward_lacks_is_named(evaluate):
    with pytest.raises(InputError, match=r"evaluation\.term=luck .* correct, style"):
        evaluate(["a"], rows=2, term="luck", right=())


def test_an_answer_is_right_from_a_grade_of_one_on(evaluate):
    """A term may give partial credit. Only full credit counts as correct, and so does more."""

    @dataclass(frozen=True, kw_only=True)
    class Partial(Listed):
        def __call__(self, episodes):
            return [{"0": 0.99, "1": 1.0, "2": 3.0}[each.prompt.id] for each in episodes]

    assert evaluate(["a"] * 3, rows=4, kind=Partial, right=())["eval/a/pass_at_1"] == 2 / 3


def test_without_prompts_there_is_nothing_to_report(evaluate):
    assert evaluate([], rows=2, right=()) == {}


@dataclass(frozen=True, kw_only=True)
class Watched(NaiveSampler):
    """A sampler that records its calls."""

    calls: list = field(default_factory=list, hash=False, compare=False)

    def __call__(self, policy, params, prompts, **options):
        self.calls.append(([prompt.id for prompt in prompts], params, options))
        return super().__call__(policy, params, prompts, **options)


@dataclass(frozen=True, kw_only=True)
class Remembering(Weighted):
    """A reward whose memory counts the rows it has graded."""

    seen: list = field(default_factory=list, hash=False, compare=False)

    def __call__(self, trajectories, episodes, memory):
        self.seen.append((len(episodes), trajectories.tokens_BT.shape[0]))
        return super().__call__(trajectories, episodes), memory + len(episodes)


@pytest.fixture
def watched():
    return Watched(max_response_tokens=8, temperature=1.0)


@pytest.fixture
def asked(make_prompt):
    """Returns five prompts of a task."""
    return [make_prompt(tokens=(257, 65 + i), id=str(i), task="a") for i in range(5)]


@pytest.fixture
def state(params, make_state):
    """Returns a state of step 3 with an average that differs from the parameters."""
    average = jax.tree.map(lambda x: 0.5 * x, params)
    return replace(make_state(params, AdamW(), step=3, memory={"reward": 7}), average=average)


def test_each_chunk_is_sampled_greedily_in_full_and_graded_in_part(
    policy, asked, state, make_phases, watched
):
    reward = Remembering(terms={"correct": Listed(right=("4",))})
    evaluation = Evaluation(
        every=1,
        phases=make_phases(rollout=watched, reward=reward),
        policy=policy,
        prompts=asked,
        term="correct",
        rows=3,
    )
    info = StepInfo(step=3, state=state, trajectories=None, episodes=None, rewards=None, metrics={})  # type: ignore[arg-type]
    assert evaluation(info) == {"eval/a/pass_at_1": 1 / 5, "eval/a/prompts": 5.0}
    assert [ids for ids, *_ in watched.calls] == [["0", "1", "2"], ["3", "4", "3"]]
    assert reward.seen == [(3, 3), (2, 2)]
    assert state.memory == {"reward": 7}
    for _, params, options in watched.calls:
        assert params is state.params
        key = options.pop("key")
        assert options == {"group_size": 1, "version": 3, "greedy": True}
        np.testing.assert_array_equal(jax.random.key_data(key), [0, 0])


@pytest.mark.parametrize("of_average", [True, False])
def test_the_parameters_are_the_newest_or_their_average(
    policy, asked, state, make_phases, watched, of_average
):
    evaluation = Evaluation(
        every=1,
        phases=make_phases(
            rollout=watched, reward=Weighted(terms={"correct": Listed(right=())}, max_invalid=1.0)
        ),
        policy=policy,
        prompts=asked[:2],
        term="correct",
        rows=2,
        of_average=of_average,
    )
    evaluation.evaluate(replace(state, memory={}))
    ((_, params, _),) = watched.calls
    assert params is (state.average if of_average else state.params)


def test_greedy_rewards_are_in_the_order_of_the_prompts(policy, asked, state, make_phases, watched):
    rewards = greedy_rewards(
        make_phases(rollout=watched, reward=Weighted(terms={"correct": Listed(right=("0", "3"))})),
        policy,
        state.params,
        replace(state, memory={}),
        asked,
        rows=8,
    )
    assert np.asarray(rewards.terms["correct"]).tolist() == [1, 0, 0, 1, 0]
    assert [ids for ids, *_ in watched.calls] == [list("01234012")]
