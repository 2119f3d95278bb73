"""Tests that an evaluation has the parameters of the checkpoint, and the samples of its chunks."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.command.evaluation import read
from rl4p.export import main as export
from rl4p.reward.weighted import Weighted
from rl4p.tools import runs
from rl4p.tools.evaluation import job
from rl4p.tools.evaluation.job import (
    build_evaluated,
    samples_of_chunk,
)
from tests.support.runs import checkpoint, ended, free_port, lines


def parameters(evaluated):
    flat, _ = jax.tree.flatten_with_path(evaluated.state.params)
    return {f"['params']{jax.tree_util.keystr(path)}": np.asarray(x) for path, x in flat}


@pytest.fixture
def built(tmp_path):
    """Returns a function that builds the evaluation of a command line."""
    return lambda *words: build_evaluated(*reversed(read([*words, f"out={tmp_path}"])))


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("step=1",), ("average=true", "evaluation.samples=0")])
def test_the_parameters_are_those_of_the_checkpoint(run, built, words):
    """An average is not taken twice: the state has no other one than its parameters."""
    evaluated = built(f"run={run}", *words)
    step, average = 1 if "step=1" in words else 3, "average=true" in words
    saved, found = checkpoint(run, step)[0], parameters(evaluated)
    assert found
    for name, value in found.items():
        name = name.replace("params", "average", 1) if average else name
        np.testing.assert_array_equal(value, saved[name], strict=True)
    assert evaluated.evaluation.of_average is False
    assert int(evaluated.state.step) == step
    assert evaluated.source == {"run": str(run), "step": step, "average": average}


@pytest.mark.slow
def test_a_model_is_its_own_source(built):
    evaluated = built("model=tiny", "evaluation.prompts=2")
    assert evaluated.source["model"].endswith("rl4p/model/tiny")
    assert len(evaluated.evaluation.prompts) == 2
    assert int(evaluated.state.step) == 0
    with pytest.raises(InputError, match="is more than the 2048 positions"):
        built("model=scratch", "max_response_tokens=9999")


@pytest.mark.slow
def test_prompts_that_are_too_long_are_counted(run, built):
    with pytest.raises(InputError, match="max_prompt_tokens=10 is too small"):  # of `long`
        built(f"run={run}", "max_prompt_tokens=10", "evaluation.samples=0")
    assert built(f"run={run}", "data.digits=1", "data.train_size=9").dropped == 0


def rows_of(evaluation, answered):
    """Returns the lines of a chunk."""
    return [sample.to_dict() for sample in samples_of_chunk(evaluation, answered)]


@pytest.mark.slow
def test_a_line_has_all_that_is_known_of_a_response(evaluated):
    evaluation = replace(evaluated.evaluation, samples=2)
    greedy, *_, drawn = evaluation.answered(evaluated.state)
    rows = rows_of(evaluation, greedy)
    assert len(rows) == len(greedy.chunk.prompts) == 8
    for row, episode in zip(rows, greedy.episodes, strict=True):
        prompt = episode.prompt
        assert (row["id"], row["prompt"], row["answer"]) == (
            prompt.id,
            prompt.question,
            prompt.answer,
        )
        assert row["response"] == episode.response
        assert row.keys() & {"sample", "seed", "valid"} == {"valid"}
        assert row["terms"].keys() == {"correct", "format", "capital"}
        assert row["correct"] == (row["terms"]["capital"] >= 1)
        assert row["status"] == ("truncated" if row["length"] == 8 else "completed")
    rows = rows_of(evaluation, drawn)
    assert [(row["id"], row["sample"]) for row in rows] == [
        (prompt.id, sample) for prompt, sample in drawn.chunk.rows()
    ]
    assert {row["seed"] for row in rows} == {0}
    mask = np.asarray(drawn.trajectories.response_mask_BT)
    assert [row["length"] for row in rows] == mask.sum(axis=1).tolist()
    assert json.loads(json.dumps(rows)) == rows


@dataclass(frozen=True, kw_only=True)
class Without:
    """A term that has no grade for one row."""

    row: int
    grade: float | None
    weight: float = 1.0

    def __call__(self, episodes):
        return [self.grade if i == self.row else 1.0 for i in range(len(episodes))]


def graded_by(evaluated, **terms):
    """Returns the lines of the first chunk, graded by some terms."""
    phases = replace(evaluated.evaluation.phases, reward=Weighted(terms=terms))
    evaluation = replace(evaluated.evaluation, phases=phases)
    return rows_of(evaluation, next(evaluation.answered(evaluated.state)))[:3]


@pytest.mark.slow
def test_a_response_that_could_not_be_graded_has_no_grades(evaluated):
    """Its grades are zeros in the arrays, which would look like wrong answers."""
    rows = graded_by(evaluated, capital=Without(row=1, grade=float("nan")))
    assert [row["terms"]["capital"] for row in rows] == [1.0, None, 1.0]
    assert [row["valid"] for row in rows] == [True, False, True]
    assert [row.get("reward") for row in rows] == [1.0, None, 1.0]
    assert [row.get("correct") for row in rows] == [True, None, True]


@pytest.mark.slow
def test_a_term_that_does_not_apply_has_no_grade_and_decides_nothing(evaluated):
    terms = {"capital": Without(row=0, grade=None), "other": Without(row=1, grade=None)}
    rows = graded_by(evaluated, **terms)
    assert [tuple(row["terms"].values()) for row in rows] == [(None, 1.0), (1.0, None), (1.0, 1.0)]
    assert [row["valid"] for row in rows] == [True, True, True]
    assert [row.get("correct") for row in rows] == [None, True, True]


FILES = {
    "request.json", "responses.jsonl", "evaluation.json", "config.yaml", "environment.json",
    "metrics.jsonl", "plots",
}  # fmt: skip


def read_job(out):
    found = json.loads((out / "evaluation.json").read_text())
    rows = [json.loads(line) for line in (out / "responses.jsonl").read_text().splitlines()]
    return found, rows


def scores(row):
    return {name: value for name, value in row.items() if name.startswith("eval/")}


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    """Returns the folder of an evaluation of the newest checkpoint of the run."""
    from rl4p.evaluate import main

    out = tmp_path_factory.mktemp("whole") / "out"
    assert main([f"run={run}", f"out={out}"]) == 0
    return out


@pytest.mark.slow
def test_the_numbers_are_those_of_the_evaluation_within_the_run(run, whole):
    """Greedy and sampled, of every task, in every digit."""
    (line,) = lines(whole)
    assert scores(line) == scores(lines(run)[-1])
    assert line["step"] == 3
    assert {f"eval/{task}/pass_at_2" for task in ("arithmetic", "long")} <= line.keys()
    values = [value for name, value in scores(line).items() if "prompts" not in name]
    assert any(0 < value < 1 for value in values)


@pytest.mark.slow
def test_the_questions_are_those_of_the_evaluation_within_the_run(run, whole):
    """Their scores and their digest, of every task."""
    within, after = runs.read(run), runs.read(whole)
    assert set(after.questions) == {
        f"eval/{task}/{kind}"
        for task in ("arithmetic", "long")
        for kind in ("pass_at_1", "avg_at_4")
    }
    assert within.questions == after.questions
    for name, questions in after.questions.items():
        assert np.mean(questions.scores) == pytest.approx(lines(whole)[0][name])


@pytest.mark.slow
def test_an_older_checkpoint_and_the_average_are_other_policies(run, whole, evaluate, tmp_path):
    assert evaluate(f"run={run}", "step=1", f"out={tmp_path}/older")[0] == 0
    assert scores(lines(tmp_path / "older")[0]) == scores(lines(run)[1])
    assert evaluate(f"run={run}", "average=true", f"out={tmp_path}/average")[0] == 0
    folders = {"older": tmp_path / "older", "average": tmp_path / "average", "newest": whole}
    found = {name: read_job(out)[0] for name, out in folders.items()}
    assert len({each["evaluated"]["params_sha256"] for each in found.values()}) == 3
    assert found["average"]["evaluated"]["average"] is True
    assert found["older"]["evaluated"]["step"] == 1
    code, _, error = evaluate(f"run={run}", "step=9", f"out={tmp_path}/none")
    assert code == 2
    assert "has no checkpoint of step 9; it has checkpoints of steps 1, 2, 3" in error


@pytest.mark.slow
def test_an_exported_policy_has_the_numbers_of_its_run(run, whole, evaluate, tmp_path):
    """From a Hugging Face folder, with the graders and tasks given on the command line."""
    assert export([f"run={run}", f"out={tmp_path}/policy"]) == 0
    code, out, error = evaluate(
        "model=pretrained", f"model.path={tmp_path}/policy", f"out={tmp_path}/out",
        "+reward.terms.capital._target_=rl4p.reward.form.Format",
        "+reward.terms.capital.pattern='.*[A-Z].*'", "evaluation.term=capital",
        "data.train_size=40", "data.held_out_size=8", "max_response_tokens=8",
        "+data@evaluation.tasks.long=arithmetic", "evaluation.tasks.long.digits=4",
        "evaluation.tasks.long.held_out_size=5", "evaluation.rows=8", "evaluation.samples=4",
        "tracker=none",
    )  # fmt: skip
    assert code == 0, error
    assert scores(lines(tmp_path / "out")[0]) == scores(lines(whole)[0])
    assert f"{tmp_path}/policy: 13 prompts, 1 greedy response and 4 samples to each" in out


@pytest.mark.slow
def test_the_files_are_the_contract_for_scripts(run, whole):
    assert {path.name for path in whole.iterdir()} == FILES
    found, rows = read_job(whole)
    assert set(found["tasks"]) == {"arithmetic", "long"}
    task = found["tasks"]["long"]
    assert {"pass_at_1", "pass_at_k", "interval", "prompts"} < set(task)
    assert set(task["pass_at_k"]) == {"2", "4"}
    assert task["prompts"] == 5
    assert task["interval"][0] <= task["pass_at_1"] <= task["interval"][1]
    assert found["evaluated"]["run"] == str(run)
    assert found["template"]["first_prompts"]["long"].endswith("<|end|><|assistant|>")
    assert found["stop"] == {"strings": ["<|end|>"], "ids": [256], "max_response_tokens": 8}
    assert found["graders"]["term"] == "capital"
    assert found["sampling"] == {
        "rollout": "rl4p.rollout.continuous.Continuous", "temperature": 1.0, "top_k": 0,
        "top_p": 1.0, "samples": 4, "seed": 0, "min_p": 0.0, "least_tokens": 0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "stop": [], "tasks": {},
    }  # fmt: skip
    assert len(rows) == 13 * 5
    assert (whole / "plots" / "evaluation.png").read_bytes().startswith(b"\x89PNG")

    for task, score in found["tasks"].items():
        own = [row for row in rows if row["task"] == task]
        greedy = [row["correct"] for row in own if "sample" not in row]
        assert score["pass_at_1"] == sum(greedy) / len(greedy)
        by_id = {}
        for row in own:
            if "sample" in row:
                by_id.setdefault(row["id"], []).append((row["sample"], row["correct"]))
        assert all([i for i, _ in x] == [0, 1, 2, 3] for x in by_id.values())
        right = np.array([sum(correct for _, correct in x) for x in by_id.values()])
        wrong = 4 - right
        assert score["pass_at_k"]["2"] == pytest.approx(np.mean(1 - wrong * (wrong - 1) / 12))
        assert score["pass_at_k"]["4"] == pytest.approx(np.mean(right > 0))
        assert score["avg_at_k"]["4"] == pytest.approx(np.mean(right) / 4)
        assert score["response_tokens"] == np.mean([row["length"] for row in own])
        assert score["truncated"] == np.mean([row["status"] == "truncated" for row in own])


@pytest.mark.slow
def test_a_finished_evaluation_is_not_sampled_again_and_says_what_it_depends_on(
    run, whole, evaluate, monkeypatch
):
    before = {path: path.read_bytes() for path in whole.glob("*.json*")}
    monkeypatch.setattr(job, "samples_of_chunk", None)
    code, out, _ = evaluate(f"run={run}", f"out={whole}")
    assert code == 0
    assert "; 9 of 9 batches are done" in out
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed <= {"metrics.jsonl"}  # the time
    assert len(lines(whole)) == 1
    words = " ".join(out.split())
    assert "task prompts score accuracy 95 % interval arithmetic 8 greedy pass@1 " in words
    assert "template long: '<|user|>" in words
    assert "stop '<|end|>', or after 8 tokens" in words
    assert "correct capital >= 1: A grade of 1 if the whole response matches" in words
    assert "sampling greedy, and 4 samples per prompt at temperature=1.0" in words
    assert "intervals 95 %, over prompts: Wilson's" in words


MANY = ("evaluation.samples=24", "evaluation.rows=2", "tracker=none")


def killed(run, out, number, after):
    """Starts an evaluation, sends it a signal after so many lines, and returns its exit code."""
    command = [sys.executable, "-m", "rl4p.evaluate", f"run={run}", f"out={out}", *MANY]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    path = out / "responses.jsonl"
    while process.poll() is None:
        if path.exists() and path.read_bytes().count(b"\n") >= after:
            process.send_signal(number)
            break
        time.sleep(0.002)
    process.communicate()
    return process.returncode


@pytest.mark.slow
def test_a_killed_evaluation_continues_bit_for_bit(run, evaluate, tmp_path):
    """It is killed twice, and the second time a line is torn. Before that, a signal stops it."""
    assert evaluate(f"run={run}", f"out={tmp_path}/whole", *MANY)[0] == 0
    out = tmp_path / "killed"
    assert killed(run, out, signal.SIGTERM, 10) == 3
    stopped = (out / "responses.jsonl").read_text().splitlines()
    assert all(json.loads(row)["task"] for row in stopped)
    for after in (len(stopped) + 10, 120):
        assert killed(run, out, signal.SIGKILL, after) == -signal.SIGKILL
        assert not (out / "evaluation.json").exists()
        so_far = (out / "responses.jsonl").read_bytes()
        assert after <= so_far.count(b"\n") < 13 * 25
    with (out / "responses.jsonl").open("ab") as file:
        file.write(so_far[:50])
    code, printed, error = evaluate(f"run={run}", f"out={out}", *MANY)
    assert code == 0, error
    assert "batches are done" in printed
    for name in ("responses.jsonl", "evaluation.json", "request.json"):
        assert (out / name).read_bytes() == (tmp_path / "whole" / name).read_bytes(), name
    assert scores(lines(out)[0]) == scores(lines(tmp_path / "whole")[0])


@pytest.mark.slow
def test_a_changed_evaluation_in_the_folder_is_refused(run, whole, evaluate):
    before = {path: path.read_bytes() for path in whole.glob("*.json*")}
    for words, sentence in (
        (["rollout.temperature=0.5"], "rollout.temperature was 1.0 and would be 0.5"),
        (["step=2"], "evaluated.step was 3 and would be 2"),
        (["evaluation.prompts=3"], "prompts_sha256.arithmetic was"),
    ):
        code, _, error = evaluate(f"run={run}", f"out={whole}", *words)
        assert code == 2
        assert "has responses of another command: " in error
        assert sentence in error
        assert error.count("\n") == 1
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_a_folder_of_something_else_is_left_alone(run, evaluate, tmp_path):
    before = sorted(run.rglob("*"))
    code, _, error = evaluate(f"run={run}", f"out={run}")
    assert code == 2
    assert error == (
        f"out={run} holds other files: choose an empty folder, or the folder of an "
        "evaluation to continue.\n"
    )
    assert sorted(run.rglob("*")) == before
    (tmp_path / "file").write_text("")
    code, _, error = evaluate(f"run={run}", f"out={tmp_path}/file/out")
    assert code == 2
    assert "cannot be written: Not a directory." in error


@pytest.mark.slow
def test_a_tracker_gets_the_scores_and_the_identity_of_the_run(run, evaluate, tmp_path):
    """Without MLflow the run has no identity, so this test gives it one."""
    seen = tmp_path / "seen.json"
    (tmp_path / "conf" / "tracker").mkdir(parents=True)
    (tmp_path / "conf" / "tracker" / "mine.yaml").write_text(
        f"_target_: tests.support.tracker_calls.Notes\npath: {seen}\n"
    )
    (run / "tracker.json").write_text('{"rl4p.run": "abc"}')
    code, _, error = evaluate(
        f"run={run}", f"out={tmp_path}/out", "tracker=mine", "evaluation.samples=0",
        "trusted_targets=[tests]", "--config-dir", tmp_path / "conf",
    )  # fmt: skip
    (run / "tracker.json").unlink()
    assert code == 0, error
    found = json.loads(seen.read_text())
    assert found["environment"]["rl4p.evaluates"] == "abc"
    assert found["environment"]["kind"] == "evaluation"
    assert found["environment"]["command"].startswith(f"python -m rl4p.evaluate run={run} out=")
    ((step, metrics),) = found["logged"]
    assert step == 3
    assert scores(metrics) == scores(lines(tmp_path / "out")[0])
    assert found["artifacts"] == ["evaluation.json", "responses.jsonl", "request.json"]
    assert found["status"] == "finished"


@pytest.mark.slow
def test_two_processes_have_the_numbers_of_one(run, whole, on_devices, tmp_path):
    """Only the first process writes the folder."""
    out, address, started = tmp_path / "out", f"localhost:{free_port()}", []
    try:
        for process in range(2):
            mesh = (f"mesh.coordinator={address}", "mesh.processes=2", f"mesh.process={process}")
            command = [sys.executable, "-m", "rl4p.evaluate", f"run={run}", f"out={out}", *mesh]
            started.append(
                subprocess.Popen(
                    command,
                    env=on_devices(1),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        ended(started, [0, 0])
    finally:
        for process in started:
            process.kill()
    (found, rows), (expected, alone) = read_job(out), read_job(whole)
    assert {path.name for path in out.iterdir()} == FILES
    assert json.loads((out / "environment.json").read_text())["processes"] == 2
    assert [row["response"] for row in rows] == [row["response"] for row in alone]
    assert found["tasks"] == expected["tasks"]
