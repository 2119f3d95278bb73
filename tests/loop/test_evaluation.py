"""Tests that each held-out question counts once, by the term that decides correctness."""

from dataclasses import dataclass, field, replace
from itertools import combinations

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Rewards
from rl4p.engine.in_process import InProcess
from rl4p.learner.optimizer import AdamW
from rl4p.loop.evaluation import Evaluation, greedy_answers, judged
from rl4p.protocols.hook import StepInfo
from rl4p.reward.weighted import Weighted
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.rollout.sampler import response_keys


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
    def run(tasks, *, rows, term="correct", kind=Listed, record=None, **listed):
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
            sets=[prompts],
            term=term,
            rows=rows,
            record=record,
        )
        return evaluation.evaluate(make_state(params, AdamW()))

    return run


@pytest.mark.quick(1)
@pytest.mark.parametrize("rows", [2, 8])
def test_questions_count_once_whatever_is_sampled_at_a_time(evaluate, rows):
    found = evaluate(["a", "a", "b", "a", "b"], rows=rows, right=("0", "4"))
    assert found == {
        "eval/a/pass_at_1": 1 / 3,
        "eval/b/pass_at_1": 1 / 2,
        "eval/a/prompts": 3.0,
        "eval/b/prompts": 2.0,
    }


def test_the_score_of_each_question_is_recorded(evaluate):
    recorded = []
    tasks, right = ["a", "a", "b", "a", "b"], ("0", "4")
    for chosen in (tasks, tasks, tasks[:4]):
        evaluate(chosen, rows=2, right=right, record=lambda step, rows: recorded.append(rows))
    (a, b), (again, _), (same_a, less_b) = recorded
    assert (a["task"], a["pass_at_1"]) == ("a", [1.0, 0.0, 0.0])
    assert (b["task"], b["pass_at_1"]) == ("b", [0.0, 1.0])
    assert a["questions"] == again["questions"] == same_a["questions"]
    assert b["questions"] != less_b["questions"]


def test_an_evaluation_counts_its_prompts(evaluate, counts):
    evaluate(["a", "a", "b", "a", "b"], rows=2, right=())
    done = {(each.phase, each.unit): [] for each in counts}
    for each in counts:
        done[each.phase, each.unit].append((each.done, each.total))
    assert done["evaluation", "prompts"] == [(5, 5)]
    assert done["reward", "grades"] == [(4, 4), (4, 4), (2, 2)]  # of two terms


def test_what_cannot_be_graded_is_not_right(evaluate):
    found = evaluate(["a", "a"], rows=2, right=("0", "1"), broken=("1",))
    assert found == {"eval/a/pass_at_1": 0.5, "eval/a/prompts": 2.0, "eval/a/invalid": 1.0}


def test_a_valid_sample_without_the_deciding_term_is_neither_right_nor_graded():
    rewards = Rewards(
        total_B=np.array([1, 5, 0, 1], np.float32),
        terms={
            "correct": np.array([1, np.nan, 0, 1], np.float32),
            "style": np.array([0, 5, 0, 0], np.float32),
        },
        valid_B=np.array([True, True, True, False]),
    )
    correct_B, judged_B = judged(rewards, "correct")
    assert correct_B == [True, False, False, False]
    assert judged_B == [True, False, True, False]


def test_a_term_that_the_reward_lacks_is_named(evaluate):
    with pytest.raises(InputError, match=r"evaluation\.term=luck .* correct, style"):
        evaluate(["a"], rows=2, term="luck", right=())


@pytest.mark.slow
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


@pytest.mark.slow
def test_each_chunk_is_sampled_greedily_in_full_and_graded_in_part(
    policy, asked, state, make_phases, watched
):
    reward = Remembering(terms={"correct": Listed(right=("4",))})
    evaluation = Evaluation(
        every=1,
        phases=make_phases(rollout=watched, reward=reward),
        policy=policy,
        sets=[asked],
        term="correct",
        rows=3,
    )
    info = StepInfo(step=3, state=state, trajectories=None, episodes=None, rewards=None, metrics={})  # type: ignore[arg-type]
    found = evaluation(info)
    assert found.pop("time/evaluation") > 0
    assert found.pop("time/evaluation_compile") >= 0
    assert found == {"eval/a/pass_at_1": 1 / 5, "eval/a/prompts": 5.0}
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
        sets=[asked[:2]],
        term="correct",
        rows=2,
        of_average=of_average,
    )
    evaluation.evaluate(replace(state, memory={}))
    ((_, params, _),) = watched.calls
    assert params is (state.average if of_average else state.params)


def test_greedy_answers_are_in_the_order_of_the_prompts(policy, asked, state, make_phases, watched):
    trajectories, episodes, rewards = greedy_answers(
        make_phases(rollout=watched, reward=Weighted(terms={"correct": Listed(right=("0", "3"))})),
        policy,
        state.params,
        replace(state, memory={}),
        asked,
        rows=8,
    )
    assert np.asarray(rewards.terms["correct"]).tolist() == [1, 0, 0, 1, 0]
    assert [each.prompt.id for each in episodes] == list("01234")
    assert len(trajectories.tokens_BT) == 5
    assert [ids for ids, *_ in watched.calls] == [list("01234012")]


# Samples.


@dataclass(frozen=True, kw_only=True)
class Even:
    """A term: 1 if the response has an even number of characters; it records the episodes."""

    seen: list = field(default_factory=list, hash=False, compare=False)
    weight: float = 1.0

    def __call__(self, episodes):
        self.seen.extend((x.prompt.task, x.prompt.id, x.response) for x in episodes)
        return [float(len(each.response) % 2 == 0) for each in episodes]


@pytest.fixture
def sampled(policy, make_phases, make_prompt, state):
    """Returns a function that gives the metrics and the (task, id, response) in their order."""

    def run(sets, *, rows, samples, rollout=NaiveSampler, **options):
        term = Even()
        evaluation = Evaluation(
            every=1,
            phases=make_phases(
                rollout=rollout(max_response_tokens=8), reward=Weighted(terms={"even": term})
            ),
            policy=policy,
            sets=[
                [make_prompt(tokens=(257, 65 + i), id=str(i), task=task) for i in range(count)]
                for task, count in sets
            ],
            term="even",
            rows=rows,
            samples=samples,
            **options,
        )
        return evaluation.evaluate(replace(state, memory={})), term.seen, evaluation

    return run


def test_evaluations_stand_before_after_and_between_the_steps(sampled):
    evaluation = sampled([("a", 1)], rows=1, samples=0)[2]
    counted = [replace(evaluation, every=every).times(10) for every in (0, 1, 4, 5, 10, 20)]
    assert counted == [2, 11, 4, 3, 2, 2]


def of_each(seen):
    """Returns the sorted responses by task and prompt."""
    found = {}
    for task, prompt, response in seen:
        found.setdefault((task, prompt), []).append(response)
    return {name: sorted(responses) for name, responses in found.items()}


@pytest.mark.slow
def test_samples_do_not_depend_on_what_is_sampled_with_them(sampled):
    """Chunks of 4 rows hold two samples of two prompts, chunks of 6 all six of one."""
    _, alone, _ = sampled([("a", 3)], rows=6, samples=6)
    _, others, _ = sampled([("b", 2), ("a", 3)], rows=4, samples=6)
    assert of_each(alone) == {name: x for name, x in of_each(others).items() if name[0] == "a"}
    assert all(len(responses) == 7 for responses in of_each(alone).values())  # one is greedy
    distinct = {response for responses in of_each(others).values() for response in responses}
    assert len(distinct) > 30  # of 35 responses


@pytest.mark.slow
def test_samplers_draw_the_same_samples(sampled):
    _, one, _ = sampled([("a", 3)], rows=6, samples=4)
    _, other, _ = sampled([("a", 3)], rows=6, samples=4, rollout=Continuous)
    assert one == other


@pytest.mark.slow
def test_another_seed_draws_other_samples_and_the_same_greedy_responses(sampled):
    _, one, _ = sampled([("a", 4)], rows=4, samples=4)
    _, other, _ = sampled([("a", 4)], rows=4, samples=4, seed=1)
    assert one[:4] == other[:4]
    assert not set(one[4:]) & set(other[4:])


def test_the_metrics_are_those_of_the_responses(sampled):
    found, seen, _ = sampled([("a", 3), ("b", 2)], rows=4, samples=4, pass_at_k=(2,))
    assert found.keys() == {
        f"eval/{task}/{name}"
        for task in "ab"
        for name in ("pass_at_1", "prompts", "avg_at_4", "pass_at_2")
    }
    right = [len(response) % 2 == 0 for task, _, response in seen if task == "a"]
    assert found["eval/a/pass_at_1"] == sum(right[:3]) / 3
    assert found["eval/a/avg_at_4"] == pytest.approx(sum(right[3:]) / 12)
    pairs = [
        one or other
        for i in range(3)
        for one, other in combinations(right[3 + 4 * i : 7 + 4 * i], 2)
    ]
    assert found["eval/a/pass_at_2"] == pytest.approx(sum(pairs) / len(pairs))
    assert 0 < sum(right) < len(right)


@pytest.mark.parametrize(
    ("rows", "samples", "together"), [(8, 8, 8), (8, 4, 4), (8, 6, 2), (8, 16, 8), (8, 3, 1)]
)
def test_chunks_are_as_large_as_a_step_and_cover_each_sample_once(sampled, rows, samples, together):
    *_, evaluation = sampled([], rows=rows, samples=samples)
    prompts = [object(), object(), object()]
    chunks = replace(evaluation, sets=[prompts, prompts[:1]]).chunks()
    greedy = [chunk for chunk in chunks if not chunk.first]
    assert [chunk.prompts for chunk in greedy] == [prompts, prompts[:1]]
    drawn = [chunk for chunk in chunks if chunk.first]
    assert {chunk.together for chunk in drawn} == {together}
    assert all(len(chunk.rows()) <= rows for chunk in drawn)
    wanted = [(prompt, i) for prompt in [*prompts, prompts[0]] for i in range(samples)]
    assert [row for chunk in drawn for row in chunk.rows()] == wanted


def test_the_last_chunk_may_be_left_to_a_later_start(sampled, state):
    *_, evaluation = sampled([("a", 3)], rows=4, samples=4)
    state = replace(state, memory={})
    whole = [[e.response for e in x.episodes] for x in evaluation.answered(state)]
    later = [[e.response for e in x.episodes] for x in evaluation.answered(state, begin=2)]
    assert len(whole) == 4
    assert later == whole[2:]


@pytest.mark.slow
def test_a_key_is_that_of_its_task_prompt_and_sample(sampled, monkeypatch):
    drawn = []
    complete = InProcess.complete

    def recorded(self, requests, *, greedy=False):
        if not greedy:
            drawn.extend(request.keys_N for request in requests)
        return complete(self, requests, greedy=greedy)

    monkeypatch.setattr(InProcess, "complete", recorded)
    sampled([("a", 1), ("b", 1)], rows=2, samples=4)
    keys = np.concatenate(drawn)
    assert len(np.unique(keys, axis=0)) == len(keys) == 8
    names = [f"{task}\0{prompt_id}" for task, prompt_id in (("a", "0"), ("b", "0"))]
    wanted = response_keys(0, names, 4)
    np.testing.assert_array_equal(keys, wanted.reshape(keys.shape))


def test_an_engine_is_closed_when_its_samples_are_drawn(sampled, monkeypatch):
    closed = []
    monkeypatch.setattr(InProcess, "close", lambda self: closed.append(self.version >= 0))
    sampled([("a", 1)], rows=2, samples=2)
    assert closed == [True]


def test_other_held_out_prompts_are_refused(policy, make_prompt, make_phases):
    def of(answer):
        return Evaluation(
            every=1,
            phases=make_phases(),
            policy=policy,
            sets=[[make_prompt(id="a")], [make_prompt(id="b", answer=answer)]],
            term="correct",
            rows=2,
        )

    saved = of("3").state()
    of("3").restore(saved)
    of("4").restore({})  # of an older checkpoint
    with pytest.raises(InputError, match=r"held-out prompts of .* are not those that the"):
        of("4").restore(saved)
