"""Tests the grades of stored responses."""

import json
import os
import shutil
from dataclasses import dataclass

import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.runs import grading
from rl4p.tools.regrading import regrade

SUM = {"prompt": "1+1", "answer": "2", "response": "It is #### 2"}
BOARD = {"board": "oAABCooBCoooDDoo", "size": 4}
MOVES = {"prompt": "a board", "answer": "Bv2,A>1", "task": "rush_hour", "metadata": BOARD}
BAD = {**MOVES, "answer": "left", "response": "<answer>A>1</answer>"}
NUMBERS = {"prompt": "3 5 7 = 22", "answer": "3*5+7", "task": "countdown"}
BY_TASK = [
    {**SUM, "task": "gsm8k"},
    {**MOVES, "response": "<answer>Bv2</answer>"},
    {**SUM, "response": "#### 3", "task": "arithmetic", "advantage": 0.25},
    {**NUMBERS, "response": "so #### 7+3*5"},
    {**MOVES, "response": "<answer>Bv1,Bv1,A>1</answer>"},
    {**NUMBERS, "response": "so #### 7+5+3"},
]


@dataclass(frozen=True, kw_only=True)
class Best:
    """A term that compares the samples of a group: 1 for the longest response."""

    weight: float = 1.0
    whole_groups: bool = True

    def __call__(self, groups):
        return [
            [float(len(e.response) == max(len(o.response) for o in group)) for e in group]
            for group in groups
        ]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """A term that reads what a line says of its response."""

    weight: float = 1.0

    def __call__(self, episodes):
        return [10.0 * (e.tokens or 0) + (-1 if e.finish is None else e.finish) for e in episodes]


@pytest.fixture
def graded(tmp_path):
    """Grades rows with some words, and returns the rows of the result."""

    def grade(rows, *words):
        path, out = tmp_path / "rows.jsonl", tmp_path / "graded.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        outs = () if any(word.startswith("out=") for word in words) else (f"out={out}",)
        regrade([f"file={path}", *outs, *words])
        return [json.loads(line) for line in out.read_text().splitlines()]

    return grade


@pytest.mark.slow
def test_each_row_is_graded_by_its_own_task_and_keeps_its_fields_and_its_order(graded, capsys):
    rows = graded(BY_TASK)
    grades = [1.0, 0.125, 0.0, 1.0, 1.0, pytest.approx(0.1)]
    assert [row["terms"]["correct"] for row in rows] == grades
    assert all(row["valid"] for row in rows)
    said = capsys.readouterr().out
    assert "rush_hour (reward=rush_hour): 2 responses, mean grades: correct 0.5625" in said
    assert "arithmetic (reward=weighted): 1 response, mean grades: correct 0.0000" in said
    for row, before in zip(rows, BY_TASK, strict=True):
        assert {key: row[key] for key in before} == before
        assert row.keys() - before.keys() == {"reward", "terms", "valid", "regraded"}
    assert all(row["regraded"] is True for row in rows)


@pytest.mark.parametrize("before", ["", "<|assistant|>", "<|assistant|><think>\n", None])
def test_a_line_says_whether_the_template_opened_the_thoughts(graded, before):
    response = SUM["response"]
    lines = [SUM | {"response": text} for text in (response, f"#### 0</think>{response}")]
    rows = graded([line | {"generation_prompt": before} for line in lines])
    thought = before is not None and "<think>" in before
    assert [row["terms"]["correct"] for row in rows] == [float(not thought), 1.0]


def test_earlier_grades_are_replaced(graded):
    """The term that decided in an evaluation is not known here, so `correct` goes."""
    before = {"reward": 9.0, "terms": {"old": 1.0}, "valid": False, "correct": True}
    (row,) = graded([SUM | before])
    assert (row["reward"], row["valid"]) == (1.5, True)  # the weighted sum
    assert row["terms"] == {"correct": 1.0, "format": 1.0}
    assert "correct" not in row


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    ("answer", "response", "grade"),
    [
        ("12", "The answer is 12, since 3 * 4 = 12.", 1.0),
        ("3 * 4 = 12\n#### 12", "so \\boxed{12}", 1.0),
        ("12", "The answer is 15, not 12", 0.0),
        ("Paris", "#### Paris", 1.0),
        ("Paris", "The answer is Paris", 0.0),
    ],
)
def test_a_line_without_a_task_is_read_in_any_format_if_its_answer_is_a_number(
    graded, answer, response, grade
):
    (found,) = graded([{"prompt": "?", "answer": answer, "response": response}])
    assert found["terms"]["correct"] == grade


@pytest.mark.slow
def test_a_row_that_cannot_be_graded_is_null_and_the_others_are_graded(graded, tmp_path, capsys):
    rows = graded([BAD, BAD, BAD, SUM])
    assert [row["valid"] for row in rows] == [False, False, False, True]
    assert "reward" not in rows[0]
    assert set(rows[0]["terms"].values()) == {None}
    assert rows[3]["reward"] == 1.5
    assert "3 could not be graded" in capsys.readouterr().out
    (tmp_path / "graded.jsonl").unlink()
    with pytest.raises(RunError, match="100% of the samples could not be graded"):
        graded([BAD], "reward.max_invalid=0.5")
    assert not (tmp_path / "graded.jsonl").exists()


def test_max_invalid_of_a_task_is_that_of_no_other(graded):
    tasks = [f"+reward@reward.tasks.{name}=rush_hour" for name in "ab"]
    words = ("reward=router", *tasks, "reward.tasks.a.max_invalid=0.3")
    rows = [{**BAD, "task": "b"}, {**MOVES, "task": "a", "response": "<answer>Bv2</answer>"}]
    assert [row["valid"] for row in graded(rows, *words)] == [False, True]
    with pytest.raises(RunError, match=r"reward\.tasks\.a\.max_invalid is 30%"):
        graded([{**BAD, "task": "a"}], *words)


def test_a_reward_grades_rows_of_all_tasks(graded):
    rows = graded([{**SUM, "task": "countdown", "response": "2"}, SUM], "reward=gsm8k")
    assert [row["terms"]["correct"] for row in rows] == [1.0, 1.0]


def test_options_of_the_reward_of_one_task_can_be_set(graded):
    row = {**SUM, "response": r"\boxed{2} or #### 3"}
    assert graded([row])[0]["terms"]["correct"] == 0.0
    (found,) = graded([row], "reward.terms.correct.extract=boxed", "reward.terms.format.weight=0")
    assert (found["terms"]["correct"], found["reward"]) == (1.0, 1.0)


def test_task_is_that_of_rows_without_one(graded):
    rows = graded(
        [{**SUM, "response": "2"}, {**SUM, "response": "2", "task": "mine"}], "task=gsm8k"
    )
    assert [row["terms"]["correct"] for row in rows] == [1.0, 0.0]


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    ("answer", "task"),
    [
        ("2", "gsm8k"),
        (2, "gsm8k"),
        (2.0, "gsm8k"),
        ("So 1+1=2\n#### 2", "gsm8k"),
        (r"Thus #### $\boxed{2}$.", "math"),
        (" 2 ", "math"),
        ("2", "code"),
    ],
    ids=repr,
)
def test_the_answer_may_be_worked(graded, answer, task):
    row = {**SUM, "answer": answer, "task": task}
    rows = graded([row, {**row, "response": "#### 1"}], "reward=weighted")
    assert [row["terms"]["correct"] for row in rows] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "task"),
    [(r"Thus $\boxed{2}$.", "gsm8k"), ("a = 1\n#### 2", "code"), ("#### 2", "math"), ("", "gsm8k")],
)
def test_an_answer_that_the_data_set_takes_as_it_stands_is_no_worked_one(graded, answer, task):
    row = {**SUM, "answer": answer, "task": task}
    (found,) = graded([row], "reward=weighted")
    assert found["terms"]["correct"] == 0.0


def test_questions_with_the_same_id_keep_their_own_answers(graded):
    rows = [{**SUM, "id": 0}, {**SUM, "id": 0, "answer": "3"}, {**SUM, "id": 1}]
    assert [row["terms"]["correct"] for row in graded(rows)] == [1.0, 0.0, 1.0]


def test_a_task_may_have_any_name(graded):
    rows = graded([{**SUM, "task": "a.b=c, d"}, {**NUMBERS, "response": "#### 7+3*5"}])
    assert [row["terms"]["correct"] for row in rows] == [1.0, 1.0]


def test_a_place_that_cannot_be_written_is_refused_before_grading(graded, tmp_path):
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file" / "a.jsonl", "/proc/a.jsonl"):
        with pytest.raises(InputError, match="cannot be written"):
            graded([SUM], f"out={place}")


def test_the_samples_of_a_question_are_a_group_wherever_they_stand(graded, monkeypatch):
    monkeypatch.setattr(grading, "AT_A_TIME", 2)
    rows = [
        {**SUM, "response": "x" * n, "prompt": q} for q, n in zip("abababc", range(7), strict=True)
    ]
    term = (f"+reward.terms.best._target_={__name__}.Best", "trusted_targets=tests")
    assert [row["terms"]["best"] for row in graded(rows, *term)] == [0, 0, 0, 0, 1, 1, 1]


def test_what_a_row_says_of_its_response_reaches_the_term(graded):
    rows = [
        {**SUM, "length": 3, "status": "truncated"},
        {**SUM, "length": 2, "status": "completed"},
        {**SUM, "status": None, "length": None, "metadata": None, "task": None},
        {**SUM, "tokens": {"texts": []}},
    ]
    term = (f"+reward.terms.end._target_={__name__}.Ended", "trusted_targets=tests")
    assert [row["terms"]["end"] for row in graded(rows, *term)] == [31, 20, -1, -1]


def test_the_rewards_of_turns_are_graded_and_a_failed_environment_is_not(graded):
    turns = [{"text": "t", "reward": 0.5}, {"text": "u", "reward": 1.0, "tokens": 3}]
    rows = [{**SUM, "turns": turns}, {**SUM, "turns": turns, "failure": "KeyError: 1"}, SUM]
    words = ("reward=episode", "reward.terms.episode_reward.weight=2", "reward.max_invalid=1")
    rows = graded(rows, *words)
    assert [row.get("reward") for row in rows] == [3.0, None, None]
    assert rows[0]["turns"] == turns


@pytest.fixture(scope="module")
def run(train, tmp_path_factory):
    """Returns the folder of a run whose grader reads metadata, and whose rewards vary."""
    folder = tmp_path_factory.mktemp("regraded") / "outputs" / "runs" / "one"
    task = ("data=rush_hour", "data.size=3", "data.least_moves=1", "reward=rush_hour")
    shape = ("steps=2", "samples.every=1", "samples.count=6", "max_prompt_tokens=512")
    process = train(*task, *shape, f"hydra.run.dir={folder}")
    assert process.returncode == 0, process.stderr
    return folder


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def regraded(tmp_path):
    """Returns a function that grades the samples of a run, and returns the rows of the result."""

    def grade(run, *words):
        regrade([f"run={run}", f"out={tmp_path / 'graded.jsonl'}", *words])
        return lines(tmp_path / "graded.jsonl")

    return grade


@pytest.mark.slow
def test_the_samples_of_a_run_keep_their_grades(run, regraded, monkeypatch):
    monkeypatch.chdir(run.parents[2])
    rows, before = regraded("latest"), lines(run / "samples.jsonl")
    assert len(rows) == 12
    assert len({row["reward"] for row in rows}) > 1
    assert [row["reward"] for row in rows] == [row["reward"] for row in before]
    assert [row["terms"] for row in rows] == [row["terms"] for row in before]
    assert {row["valid"] for row in rows} == {True}


@pytest.mark.slow
def test_the_reference_of_a_sample_is_no_worked_answer(run, regraded, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(run, folder)
    row = {"step": 1, "prompt": "a", "answer": "x #### 2", "task": "rush_hour"}
    samples = [row | {"response": rf"\boxed{{{each}}}"} for each in ("2", "x #### 2")]
    (folder / "samples.jsonl").write_text("".join(json.dumps(each) + "\n" for each in samples))
    rows = regraded(folder, "reward=weighted", "reward.terms.correct.extract=boxed")
    assert [row["terms"]["correct"] for row in rows] == [0.0, 1.0]
    (folder / "samples.jsonl").unlink()
    with pytest.raises(InputError, match="has no samples: choose a run"):
        regraded(folder)


@pytest.mark.slow
def test_the_reward_of_a_run_can_be_changed(run, regraded):
    rows = regraded(run, "reward.terms.capital.weight=3", "reward.terms.format.weight=0")
    capitals = [row["terms"]["capital"] for row in rows]
    assert set(capitals) == {0.0, 1.0}
    assert [row["reward"] - row["terms"]["correct"] for row in rows] == [3 * x for x in capitals]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("task=gsm8k",), "The samples of a run have tasks"),
        (("experiment=countdown_grpo",), "experiment has no effect beside run"),
    ],
)
@pytest.mark.slow
def test_what_cannot_act_on_a_run_is_refused(run, regraded, words, said):
    with pytest.raises(InputError, match=said):
        regraded(run, *words)


@pytest.mark.parametrize(
    ("rows", "words", "said"),
    [
        ([{"answer": "2"}], (), "line 1: a sample needs a prompt; this one has answer."),
        ([SUM, {"prompt": "a", "answer": "2"}], (), "line 2: a sample needs a response"),
        ([{"prompt": "a", "response": "2"}], (), "line 1: a sample to grade needs an answer"),
        ([{**SUM, "answer": "so ####"}], (), "line 1: answer has an empty ####"),
        ([{**SUM, "answer": r"\boxed{}", "task": "math"}], (), r"has an empty \boxed{}"),
        ([{**SUM, "task": "\ud800"}], (), "line 1: task is not UTF-8"),
        ([{**SUM, "length": -4}], (), "line 1: length must be a natural number, not -4."),
        ([SUM, {**SUM, "status": "done"}], (), "line 2: status is 'done', not one of completed"),
        ([{"question": "a"}], (), "line 1: a sample has no question; its keys are prompt"),
        ([{**SUM, "task": "GSM8K"}], (), 'task "GSM8K" has no reward; did you mean "gsm8k"?'),
        ([{**SUM, "task": "rush-hour"}], (), 'did you mean "rush_hour"?'),
        ([SUM], ("task=GSM8K",), "did you mean task=gsm8k?"),
        ([{**SUM, "task": "a"}], ("task=gsm8k",), "task=gsm8k has no effect, because every line"),
        ([], (), "has no lines"),
        ([SUM], ("task=gsm9k",), "gsm9k is not a task of the package; did you mean task=gsm8k"),
        ([SUM], ("seed=1",), "seed=1 has no effect on rl4p.regrade"),
        ([SUM], ("reward=weightd",), "did you mean reward=weighted"),
        ([SUM], ("reward=router",), "tasks is empty"),
        ([SUM], ("run=here",), "Give run=FOLDER or file=FILE"),
    ],
)
def test_wrong_input_gets_one_sentence_and_writes_nothing(graded, tmp_path, rows, words, said):
    with pytest.raises(InputError) as error:
        graded(rows, *words)
    assert said in str(error.value)
    assert not (tmp_path / "graded.jsonl").exists()


def test_only_an_earlier_result_is_replaced(graded, tmp_path):
    rows, path = graded([SUM]), tmp_path / "graded.jsonl"
    with pytest.raises(InputError, match="is the file with the responses"):
        regrade([f"file={path}", f"out={path}"])
    assert json.loads(path.read_text()) == rows[0]
    assert len(graded([SUM, SUM])) == 2
    path.write_text("mine\n")
    with pytest.raises(InputError, match="was not made by"):
        graded([SUM])
    assert path.read_text() == "mine\n"


def test_what_is_no_regular_file_is_not_replaced(graded, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "pipe").open("r+b", buffering=0) as file:
        file.write(b"mine\n")  # so that no reader waits
        with pytest.raises(InputError, match="is a device or a pipe: name a file"):
            graded([SUM], f"out={tmp_path / 'pipe'}")
    with pytest.raises(InputError, match="cannot be read: File name too long"):
        graded([SUM], f"out={tmp_path / ('a' * 300)}")


def test_a_symbolic_link_stays(graded, tmp_path):
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "graded.jsonl")
    assert graded([SUM], f"out={tmp_path / 'link.jsonl'}")[0]["valid"]
    assert (tmp_path / "link.jsonl").is_symlink()


def test_a_folder_that_is_not_that_of_a_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"run=.* is not the folder of a run"):
        regrade([f"run={tmp_path}", f"out={tmp_path / 'a.jsonl'}"])
