"""Tests that each row is graded by the reward of its own task."""

import re
import threading
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from rl4p.base.errors import RunError
from rl4p.configuration import compose
from rl4p.data.synthetic import Arithmetic
from rl4p.loop.loop import train
from rl4p.reward.router import Router
from rl4p.reward.weighted import Weighted
from rl4p.runs.build import build

NAN = float("nan")


@dataclass(frozen=True, kw_only=True)
class Is:
    """A grade of 1 if the response is the prompt's answer; it records the tasks that it sees."""

    weight: float = 1.0
    scale: float = 1.0
    whole_groups: bool = False
    seen: list = field(default_factory=list)

    def __call__(self, episodes):
        groups = episodes if self.whole_groups else [episodes]
        grades = []
        for group in groups:
            self.seen.append({each.prompt.task for each in group})
            grades.append([self.scale * (x.response == x.prompt.answer) for x in group])
        return grades if self.whole_groups else grades[0]


@dataclass(frozen=True, kw_only=True)
class Gives:
    grades: tuple
    weight: float = 1.0
    deadline: float = 60.0

    def __call__(self, episodes):
        return self.grades[: len(episodes)]


def weighted(max_invalid=0.5, **terms):
    return Weighted(terms=terms, max_invalid=max_invalid)


@pytest.fixture
def episodes(make_prompt, make_episodes):
    """Returns rows of four tasks, mixed; the response to the i-th row is i."""
    tasks = ("sums", "words", "sums", "moves", "words", "code", "sums", "code")
    answers = ("0", "9", "2", "3", "4", "9", "9", "7")
    prompts = [
        make_prompt(id=str(i), task=task, answer=answer)
        for i, (task, answer) in enumerate(zip(tasks, answers, strict=True))
    ]
    return make_episodes("01234567", prompts)


def test_a_mixed_batch_of_four_tasks_is_graded_by_four_graders(episodes):
    own = {task: Is(scale=scale) for task, scale in zip(
        ("sums", "words", "moves", "code"), (1.0, 10.0, 100.0, 1000.0), strict=True
    )}  # fmt: skip
    tasks = {task: weighted(correct=term) for task, term in own.items()}
    tasks["sums"] = weighted(correct=own["sums"], format=Gives(grades=(1, 0, 1), weight=0.5))
    rewards = Router(tasks=tasks).grade_texts(episodes)
    assert {task: term.seen for task, term in own.items()} == {task: [{task}] for task in own}
    np.testing.assert_array_equal(rewards.terms["correct"], [1, 0, 1, 100, 10, 0, 0, 1000])
    format_B = [1, NAN, 0, NAN, NAN, NAN, 1, NAN]
    np.testing.assert_array_equal(rewards.terms["format"], format_B)
    np.testing.assert_array_equal(rewards.total_B, [1.5, 0, 1, 100, 10, 0, 0.5, 1000])
    assert rewards.valid_B.all()
    assert {x.dtype for x in (rewards.total_B, *rewards.terms.values())} == {np.dtype("float32")}


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_a_run_of_four_tasks_reports_terms_by_task(monkeypatch):
    """The terms differ by task, and the gradient learns from all of them."""
    questions = Arithmetic.questions
    monkeypatch.setattr(
        Arithmetic,
        "questions",
        lambda self: [replace(x, task=f"t{i % 4}") for i, x in enumerate(questions(self))],
    )
    words = [
        *("model=scratch", "model.width=32", "model.layers=1", "model.heads=2", "tracker=none"),
        *("data.train_size=16", "data.held_out_size=8", "prompts_per_step=16", "group_size=4"),
        *("max_response_tokens=8", "steps=1", "debug=on", "advantage=gdpo", "reward=router"),
        *(f"+reward@reward.tasks.t{i}=weighted" for i in range(4)),
        *(f"~reward.tasks.t{i}.terms.format" for i in (1, 2, 3)),
        "reward.tasks.t0.terms.format.pattern='.*[a-m].*'",
        *(f"+term@reward.tasks.t{i}.terms.own{i}=format" for i in (1, 2, 3)),
        "reward.tasks.t1.terms.own1.pattern='.*[n-z].*'",
        "reward.tasks.t2.terms.own2.pattern='.*[A-Z].*'",
        "reward.tasks.t3.terms.own3.pattern='.*[0-9].*'",
    ]
    run = build(compose(words))
    (info,) = train(run.loop, run.state)
    assert info.metrics["update/grad_norm"] > 0
    metrics = {name.removeprefix("reward/"): x for name, x in info.metrics.items()}
    patterns = {"format": "[a-m]", "own1": "[n-z]", "own2": "[A-Z]", "own3": "[0-9]"}
    for i, (name, pattern) in enumerate(patterns.items()):
        texts = [each.response for each in info.episodes if each.prompt.task == f"t{i}"]
        assert len(texts) == 16
        own = sum(re.search(pattern, text) is not None for text in texts) / 16
        assert metrics[name] == metrics[f"t{i}/{name}"] == own
        assert {key for key in metrics if key.startswith(f"t{i}/")} == {
            f"t{i}/{key}" for key in ("mean", "invalid", "correct", "pass_at_1", name)
        }
    assert run.evaluation(info)["eval/t3/prompts"] == 2


def test_the_terms_are_those_of_all_tasks_also_of_the_absent(episodes):
    tasks = {"sums": weighted(a=Is()), "words": weighted(b=Is()), "other": weighted(c=Is())}
    rewards = Router(tasks=tasks).grade_texts([e for e in episodes if e.prompt.task == "sums"])
    assert list(rewards.terms) == list(Router(tasks=tasks).terms) == ["a", "b", "c"]
    assert np.isnan(rewards.terms["c"]).all()


def test_invalid_rows_are_those_of_their_task(episodes):
    bad = weighted(max_invalid=0.7, b=Gives(grades=(1, NAN, None)))
    tasks = {"sums": bad, **{t: weighted(a=Is()) for t in ("words", "moves", "code")}}
    rewards = Router(tasks=tasks).grade_texts(episodes)
    np.testing.assert_array_equal(rewards.valid_B, [1, 1, 0, 1, 1, 1, 0, 1])
    np.testing.assert_array_equal(rewards.terms["b"][[0, 2, 6]], [1, 0, 0])
    np.testing.assert_array_equal(rewards.terms["a"][[2, 6]], [0, 0])  # 0 where invalid
    tasks["sums"] = weighted(b=Gives(grades=(1, NAN, None)))
    with pytest.raises(
        RunError, match=r"^67% of the samples .* \(reward\.tasks\.sums\.max_invalid"
    ):
        Router(tasks=tasks).grade_texts(episodes)


def test_a_late_task_is_late_alone(episodes):
    event = threading.Event()

    @dataclass(frozen=True, kw_only=True)
    class Hangs(Gives):
        def __call__(self, episodes):
            event.wait()
            return self.grades[: len(episodes)]

    tasks = {task: weighted(a=Is()) for task in ("words", "moves", "code")}
    tasks["sums"] = weighted(max_invalid=1.0, a=Hangs(grades=(1, 1, 1), deadline=0.05))
    rewards = Router(tasks=tasks).grade_texts(episodes)
    event.set()
    np.testing.assert_array_equal(rewards.late_B, [1, 0, 1, 0, 0, 0, 1, 0])
    np.testing.assert_array_equal(rewards.valid_B, ~rewards.late_B)


def test_a_task_without_reward_is_named_in_one_sentence(episodes):
    router = Router(tasks={"sums": weighted(a=Is()), "code": weighted(a=Is())})
    with pytest.raises(RunError) as caught:
        router.grade_texts(episodes)
    assert str(caught.value) == (
        "The data has the tasks moves, words, but reward.tasks has only sums, code: add "
        "+reward@reward.tasks.moves=weighted +reward@reward.tasks.words=weighted"
    )


def test_groups_reach_the_terms_that_compare_them(episodes, make_trajectories):
    compares = Is(whole_groups=True)
    tasks = {t: weighted(a=Is()) for t in ("words", "moves", "code")}
    router = Router(tasks=tasks | {"sums": weighted(a=compares)})
    assert router.whole_groups
    assert not Router(tasks=tasks).whole_groups
    trajectories = make_trajectories((2,) * 8, group_ids=(5, 1, 6, 2, 1, 3, 6, 3))
    router(trajectories, episodes)
    assert compares.seen == [{"sums"}] * 2  # the groups 5 and 6


@dataclass(frozen=True, kw_only=True)
class Measures(Is):
    """Measures the number of its responses."""

    def open(self):
        return self

    def metrics(self):
        return {"responses": sum(map(len, self.seen))}

    def close(self):
        pass


def test_what_a_term_measures_has_the_task_in_its_name(episodes):
    tasks = {t: weighted(a=Is()) for t in ("words", "moves")}
    router = Router(tasks=tasks | {t: weighted(a=Measures()) for t in ("sums", "code")})
    assert router.metrics() == {}  # nothing is open
    router.grade_texts(episodes)
    assert router.metrics() == {"reward/sums/a_responses": 1, "reward/code/a_responses": 1}
    router.close()


def test_a_router_may_hold_a_router(episodes):
    inner = Router(tasks={t: weighted(a=Is()) for t in ("words", "moves", "code")})
    outer = Router(tasks={"sums": weighted(b=Is()), "words": inner, "moves": inner, "code": inner})
    rewards = outer.grade_texts(episodes)
    np.testing.assert_array_equal(rewards.terms["a"], [NAN, 0, NAN, 1, 1, 0, NAN, 1])


def test_rewards_that_cannot_grade_texts_are_refused():
    with pytest.raises(ValueError, match=r"^tasks is empty: add \+reward@reward\.tasks\.TASK="):
        Router()
    with pytest.raises(ValueError, match=r"^tasks\.sums \(str\) cannot grade texts alone: choose"):
        Router(tasks={"sums": "weighted"})


def test_scores_that_terms_ask_for_are_the_union():
    @dataclass(frozen=True, kw_only=True)
    class Asks(Is):
        needs = frozenset({"entropy"})

    router = Router(tasks={"a": weighted(x=Asks()), "b": weighted(y=Is())})
    assert router.needs == {"entropy"}


def test_all_rewards_are_closed_also_after_one_cannot_be():
    closed = []

    @dataclass(frozen=True, kw_only=True)
    class Pool:
        name: str
        weight: float = 1.0

        def open(self):
            return self.Live(self.name)

        class Live:
            def __init__(self, name):
                self.name = name

            def __call__(self, episodes):
                return [1] * len(episodes)

            def close(self):
                closed.append(self.name)
                if self.name == "b":
                    raise OSError("gone")

    tasks = {name: weighted(pool=Pool(name=name)) for name in "abc"}
    router = Router(tasks=tasks)
    for reward in tasks.values():
        reward.grade_texts([None])
    with pytest.raises(OSError, match="gone"):
        router.close()
    assert sorted(closed) == ["a", "b", "c"]
