"""Tests which prompts an evaluation has, and that options of samples which cannot act are named."""

import json
import re
from dataclasses import replace

import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.configuration import compose
from rl4p.data.synthetic import Arithmetic
from rl4p.runs.build import build, build_phases
from rl4p.runs.evaluation import (
    check_references,
    held_out_questions,
    pass_at_k,
    refuse_samples_that_cannot_be,
)
from tests.support.build_words import SMALL


def built(*overrides):
    return build(compose([*SMALL, *overrides])).evaluation


def refusal(*overrides):
    with pytest.raises(InputError) as caught:
        built(*overrides)
    return str(caught.value)


@pytest.mark.slow
def test_the_held_out_questions_of_the_data_come_first_and_keep_their_task():
    evaluation = built("+data@evaluation.tasks.long=arithmetic", "evaluation.tasks.long.digits=4")
    assert [len(prompts) for prompts in evaluation.sets] == [4, 256]
    own, long = evaluation.sets
    assert {prompt.task for prompt in own} == {"arithmetic"}
    assert {prompt.task for prompt in long} == {"long"}
    assert all(len(prompt.question) == 9 for prompt in long)
    assert len(evaluation.prompts) == 260


@pytest.mark.slow
def test_a_suite_may_leave_the_data_out_and_prompts_limits_each_task():
    evaluation = built("suite=sums", "evaluation.prompts=3")
    assert [[prompt.task for prompt in prompts] for prompts in evaluation.sets] == [
        ["two_digits"] * 3,
        ["three_digits"] * 3,
        ["four_digits"] * 3,
    ]


@pytest.mark.slow
def test_prompts_limits_each_task_of_a_mixture():
    words = [f"+data@data.sets.{name}=arithmetic" for name in ("long", "short")]
    words += [f"data.sets.{name}.train_size=20" for name in ("long", "short")]
    words += ["data.sets.long.digits=4", "data.sets.short.digits=2", "evaluation.prompts=3"]
    evaluation = build(compose([*SMALL[:4], *SMALL[6:], "data=mixture", *words])).evaluation
    assert [prompt.task for prompt in evaluation.prompts] == ["long"] * 3 + ["short"] * 3


def test_a_task_has_its_own_system_prompt(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"question": "1+1?", "answer": "2"}) + "\n")
    words = ["+data@evaluation.tasks.mine=jsonl", "evaluation.tasks.mine.system_prompt=Think."]
    words += [f"evaluation.tasks.mine.{key}={path}" for key in ("path", "held_out_path")]
    evaluation = built(*words, "max_prompt_tokens=64")
    texts = [evaluation.policy.tokenizer.decode(prompt.tokens) for prompt in evaluation.prompts]
    assert texts[-1] == "<|system|>Think.<|end|><|user|>1+1?<|end|><|assistant|>"
    assert "Think" not in texts[0]


@pytest.mark.slow
def test_the_options_reach_the_evaluation():
    words = ("evaluation.samples=6", "evaluation.seed=5", "evaluation.rows=12")
    evaluation = built(*words, "evaluation.chosen_by=format")
    assert evaluation.chosen_by == "format"
    assert (evaluation.samples, evaluation.seed, evaluation.rows) == (6, 5, 12)
    assert evaluation.pass_at_k == (2, 4)
    evaluation = built()
    assert (evaluation.rows, evaluation.pass_at_k, evaluation.samples) == (8, (), 0)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("evaluation.samples=8 evaluation.pass_at_k=[5,3,5]", (3, 5)),
        ("evaluation.samples=8", (2, 4, 8)),
        ("evaluation.samples=6", (2, 4)),
        ("evaluation.samples=0", ()),
    ],
)
def test_the_values_of_k_are_given_or_the_powers_of_two(words, found):
    assert pass_at_k(compose(words.split()).evaluation) == found


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("evaluation.held_out=false", "leaves no task to evaluate: choose suite=NAME"),
        (
            "+data@evaluation.tasks.arithmetic=arithmetic",
            "evaluation.tasks.arithmetic has the name of a task of data: choose another name",
        ),
        ("evaluation.pass_at_k=[2]", "pass@2 needs 2 samples or more: set evaluation.samples=2"),
        ("evaluation.samples=3 evaluation.pass_at_k=[4]", "pass@4 needs 4 samples or more"),
        ("evaluation.seed=1", "evaluation.seed=1 is the seed of samples"),
        ("evaluation.samples=2 rollout.temperature=0", "rollout.temperature=0 makes all samples"),
        ("evaluation.chosen_by=format", "evaluation.chosen_by=format chooses among samples: set"),
        ("evaluation.samples=2 evaluation.chosen_by=luck", "chosen_by=luck is not a term of the"),
        ("evaluation.term=luck", "evaluation.term=luck is not a term of the reward; its terms"),
        (
            "evaluation.samples=2 rollout=demonstrations advantage=constant update=sft",
            "evaluation.samples=2 needs a sampler with an engine, but rollout (Demonstrations)",
        ),
    ],
)
def test_what_cannot_act_is_named(words, sentence):
    assert sentence in refusal(*words.split())


@pytest.fixture
def four_tasks(monkeypatch):
    """Makes the sums a mixture of four tasks."""
    questions = Arithmetic.questions.func

    def of_four_tasks(self):
        return [replace(x, task=f"task{i % 4}") for i, x in enumerate(questions(self))]

    monkeypatch.setattr(Arithmetic, "questions", property(of_four_tasks))


def rewards_of(*tasks):
    return ["reward=router", *(f"+reward@reward.tasks.{task}=weighted" for task in tasks)]


@pytest.mark.slow
def test_every_task_of_the_data_needs_a_reward_and_its_term(four_tasks):
    all_tasks = rewards_of("task0", "task1", "task2", "task3")
    assert len(built(*all_tasks).prompts) == 4
    assert refusal(*rewards_of("task0", "task2")) == (
        "The data has the tasks task1, task3, but reward.tasks has only task0, task2: add "
        "+reward@reward.tasks.task1=weighted +reward@reward.tasks.task3=weighted"
    )
    without = [*all_tasks, "~term@reward.tasks.task2.terms.correct"]
    assert refusal(*without) == (
        "evaluation.term=correct is not a term of reward.tasks.task2; its terms are format."
    )
    # Of the held-out questions too.
    more = "+data@evaluation.tasks.long=arithmetic"
    assert "has the tasks long, but reward.tasks has only" in refusal(*all_tasks, more)


@pytest.mark.slow
def test_rows_are_divided_by_the_devices(monkeypatch):
    from rl4p.distributed.mesh import Mesh

    monkeypatch.setattr(Mesh, "row_shards", 4)
    assert "evaluation.rows=6 must be a multiple of 4" in refusal("evaluation.rows=6")
    built("evaluation.rows=12")


@pytest.mark.slow
def test_prompts_of_one_id_cannot_be_counted(make_prompt):
    config, sampler = compose([*SMALL, "evaluation.samples=2"]), built().phases.rollout
    prompts = [make_prompt(id="1", task="a"), make_prompt(id="1", task="b")]
    refuse_samples_that_cannot_be(config, sampler, [prompts])
    with pytest.raises(InputError, match="Two prompts of the task b have the id 1: the samples"):
        refuse_samples_that_cannot_be(config, sampler, [[*prompts, make_prompt(id="1", task="b")]])


@pytest.mark.slow
def test_samples_need_ids_that_differ(monkeypatch):
    questions = Arithmetic.questions.func

    def twice(self):
        first, second, *others = questions(self)
        return [first, replace(second, id=first.id), *others]

    monkeypatch.setattr(Arithmetic, "questions", property(twice))
    assert "have the id arithmetic/" in refusal("evaluation.samples=2")
    assert built().samples == 0


def test_data_that_is_left_out_is_not_read():
    config = compose([*SMALL, "suite=sums"])
    found = held_out_questions(config, None)
    assert found[0].key == "evaluation.tasks.two_digits"


WITHOUT = ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour")
FEW = ("data=reasoning_gym", "data.train_size=4", "data.held_out_size=2", "max_prompt_tokens=4096")


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", WITHOUT)
@pytest.mark.parametrize("reward", ["weighted", "math", "crossword", "gsm8k"])
def test_a_reward_that_compares_needs_references(name, reward):
    pytest.importorskip("reasoning_gym")
    assert re.match(
        rf"reward.terms.correct compares with the reference answer, but the question "
        rf"reasoning_gym/{name}/\d has none: choose .* \(reward=reasoning_gym\)",
        refusal(*FEW, f"data.name={name}", f"reward={reward}"),
    )


@pytest.mark.quick(1)
@pytest.mark.parametrize("name", WITHOUT)
def test_a_reward_that_does_not_compare_needs_none(name):
    pytest.importorskip("reasoning_gym")
    scored = ("reward=reasoning_gym", "reward.terms.correct.sandbox=none")
    for words in (scored, ("reward.terms.correct.weight=0",)):
        check_references(build_phases(compose([*FEW, f"data.name={name}", *words])), [NONE])
    with pytest.raises(InputError, match=r"reward\.terms\.correct compares"):
        check_references(build_phases(compose([*FEW, f"data.name={name}"])), [NONE])


NONE = Question(id="q", question="?", answer=" ", task="task1")


def test_the_task_whose_reward_compares_is_named():
    phases = build_phases(
        compose([*rewards_of("task0", "task1"), "~term@reward.tasks.task0.terms.correct"])
    )
    check_references(phases, [replace(NONE, task="task0"), replace(NONE, answer="1")])
    with pytest.raises(InputError, match=r"reward\.tasks\.task1\.terms\.correct compares"):
        check_references(phases, [NONE])


def test_supervised_training_needs_no_references(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [[{"role": "user", "content": f"{n}"}] for n in range(6)]
    rows = [[*row, {"role": "assistant", "content": "<think>b</think>"}] for row in rows]
    path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
    words = (f"data.path={path}", "data.messages_key=messages", "data.answer_key=null")
    sft = ("data=jsonl", "rollout=demonstrations", "advantage=constant", "update=sft")
    experiment = build(compose([*SMALL[:4], *SMALL[6:], "data.held_out_size=2", *words, *sft]))
    assert {prompt.answer for prompt in experiment.prompts} <= {"", "<think>b</think>"}
