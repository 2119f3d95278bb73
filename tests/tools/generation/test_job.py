"""Tests whole commands, with the policy of a run and with a server."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.tools.generation import local
from rl4p.tools.generation.job import generate, refuse_equal_ids
from tests.support.answers import completion, worked
from tests.support.runs import assert_trains, lines

POLICY = ("group_size=4", "prompts_per_step=8", "mesh=single")


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def out(tmp_path):
    return tmp_path / "kept.jsonl"


def files(out):
    return {path.name: path.read_bytes() for path in out.parent.iterdir()}


def test_the_policy_of_the_package_keeps_what_is_right(out, capsys):
    generate([f"out={out}", *POLICY, "prompts=20", "keep=correct"])
    responses, kept = rows(out.with_suffix(".responses.jsonl")), rows(out)
    assert len(responses) == 80
    right = [
        row for row in responses if row["terms"]["correct"] == 1 and row["status"] == "completed"
    ]
    assert 0 < len(kept) == len(right) < 60
    for row, response in zip(kept, right, strict=True):
        assert row["question"] == response["prompt"]
        assert row["answer"] == response["response"]
        assert row["answer"].rpartition("#### ")[2] == row["reference"]
    printed = capsys.readouterr().out
    assert "20 prompts x 4 samples" in printed
    assert f"kept {len(kept)} of 80 responses" in printed
    assert f"data.path={out}" in printed


@pytest.mark.slow
def test_the_same_command_samples_nothing_again(out, monkeypatch, capsys):
    command = [f"out={out}", *POLICY, "prompts=10", "keep=correct"]
    generate(command)
    before = files(out)
    monkeypatch.setattr(local, "response_keys", lambda *_: pytest.fail("sampled again"))
    generate(command)
    assert files(out) == before
    assert "40 of 40 responses exist already" in capsys.readouterr().out
    generate([*command[:-1], "keep=reward", "at_least=0.5", "best=1"])  # chooses again
    assert len(rows(out)) >= len({row["id"] for row in rows(out)}) > 0
    assert files(out)["kept.responses.jsonl"] == before["kept.responses.jsonl"]
    with pytest.raises(InputError, match="has responses of another command: seed was 0 and would"):
        generate([*command, "seed=1"])


@pytest.mark.slow
def test_a_job_that_a_signal_stops_goes_on_and_ends_the_same(out, tmp_path, monkeypatch):
    command = [*POLICY, "prompts=20", "best=1"]
    whole = tmp_path / "whole"
    whole.mkdir()
    generate([f"out={whole / 'kept.jsonl'}", *command])
    keys = local.response_keys

    def then_stop(*given):
        os.kill(os.getpid(), signal.SIGTERM)
        return keys(*given)

    parts = tmp_path / "parts"
    monkeypatch.setattr(local, "response_keys", then_stop)
    for saved in (32, 64):  # a signal during each of the first two chunks
        with pytest.raises(Stopped, match=f"Stopped with {saved} of 80 responses"):
            generate([f"out={parts / 'kept.jsonl'}", *command])
    monkeypatch.setattr(local, "response_keys", keys)
    generate([f"out={parts / 'kept.jsonl'}", *command])
    assert files(parts / "kept.jsonl") == files(whole / "kept.jsonl")


@pytest.mark.slow
def test_without_grades_and_of_held_out_questions(out):
    held_out = ("split=held_out", "data.held_out_size=2")
    generate([f"out={out}", *POLICY, "prompts=3", "grade=false", *held_out])
    assert {(row["reward"], len(row["terms"])) for row in rows(out)} == {(None, 0)}
    assert len({row["id"] for row in rows(out.with_suffix(".responses.jsonl"))}) == 2


@pytest.mark.slow
def test_nothing_to_keep_is_an_error_that_says_why(out):
    impossible = "reward.terms.format.pattern=never"
    with pytest.raises(RunError, match=r"None of 8 responses can be kept \(8 below the least"):
        generate([f"out={out}", *POLICY, "prompts=2", "keep=format", impossible])
    assert not out.exists()
    assert len(rows(out.with_suffix(".responses.jsonl"))) == 8


def test_what_cannot_be_generated_is_refused_and_writes_no_file(questions, out):
    refuse_equal_ids(questions)
    with pytest.raises(InputError, match=r"2 questions of the data set have the id arithmetic/11"):
        refuse_equal_ids([*questions, replace(questions[0], question="another")])
    with pytest.raises(InputError, match="is more than the"):
        generate([f"out={out}", *POLICY, "prompts=2", "max_response_tokens=9999"])
    assert list(out.parent.iterdir()) == []


@pytest.mark.parametrize("end", [".jsonl", ".responses.jsonl", ".settings.json"])
def test_files_of_something_else_are_not_replaced(out, end):
    theirs = out.with_suffix(end)
    theirs.write_text('{"mine": 1}\n')
    with pytest.raises(InputError, match=rf"{end} exists and was not made by rl4p\.generate"):
        generate([f"out={out}", *POLICY, "prompts=2"])
    assert {path.name: path.read_text() for path in out.parent.iterdir()} == {
        theirs.name: '{"mine": 1}\n'
    }


def served(url, out, *words):
    generate([f"out={out}", f"server={url}", "server.model=m", "group_size=2", *words])


@pytest.mark.slow
def test_a_server_end_to_end(serve, out, capsys):
    def answer(body, number):
        wrong = body["seed"] % 2
        return completion(worked(body) + "0" * wrong)

    asked = serve(answer)
    served(asked.url, out, "prompts=10", "keep=correct", "max_response_tokens=9")
    assert len(asked.bodies) == 20
    even = sum(body["seed"] % 2 == 0 for body in asked.bodies)
    assert 0 < len(rows(out)) == even < 20
    assert asked.bodies[0]["max_tokens"] == 9
    assert "m at http://127.0.0.1" in capsys.readouterr().out


def test_failures_stop_the_result_but_not_the_others(serve, out):
    broken = True

    def answer(body, number):
        if broken and body["seed"] % 3 == 0:
            return 400, {}, b'{"error": "too long"}'
        return completion(worked(body))

    asked = serve(answer)
    words = ("prompts=6", "data.seed=4", "data.digits=1", "data.train_size=20",
             "data.held_out_size=2")  # fmt: skip
    with pytest.raises(RunError, match=r"of 12 responses failed, the last with: HTTP 400 too long"):
        served(asked.url, out, *words)
    assert not out.exists()
    some = len(rows(out.with_suffix(".responses.jsonl")))
    assert 0 < some < 12
    served(asked.url, out, *words, "server.failed=skip")
    assert len(rows(out)) == some
    broken = False
    served(asked.url, out, *words)
    found = rows(out)
    assert len(found) == 12
    assert len({(row["id"], row["sample"]) for row in found}) == 12


def run(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", *words], capture_output=True, text=True, check=False, **options
    )


@pytest.mark.slow
def test_rejection_sampling_in_two_commands(tmp_path):
    """The policy of the package samples sums; trained on its right answers, it adds better."""
    from rl4p.data.synthetic import Arithmetic

    held_out = tmp_path / "held_out.jsonl"
    sums = [{"question": q.question, "answer": q.solution} for q in Arithmetic().held_out()]
    held_out.write_text("".join(json.dumps(row) + "\n" for row in sums))
    command = ("rl4p.generate", "out=kept.jsonl", "prompts=1024", "keep=correct")
    first = run(*command, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    second = run(
        *("rl4p.train", "experiment=arithmetic_sft", "data=jsonl", "data.path=kept.jsonl"),
        *("data.several_answers=true", f"data.held_out_path={held_out}", "steps=12"),
        *("tracker=none", "hydra.run.dir=run", "prompts_per_step=128"),
        cwd=tmp_path,
    )
    assert second.returncode == 0, second.stderr
    steps = [row for row in lines(tmp_path / "run") if row["step"] > 0]
    assert len(steps) == 12
    for row in steps:  # all advantages of demonstrations are 1
        assert row["update/grad_norm"] > 0
        assert row["update/skipped"] == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())["evaluation"]
    before, after = (summary[when]["eval/jsonl/pass_at_1"] for when in ("first", "last"))
    assert before < 0.2
    assert after > before + 0.15


@pytest.mark.slow
def test_a_run_is_sampled_and_a_kill_changes_nothing(tmp_path, train, monkeypatch):
    assert train(f"hydra.run.dir={tmp_path / 'run'}", "steps=2").returncode == 0
    assert_trains(lines(tmp_path / "run"))
    command = ["rl4p.generate", f"run={tmp_path / 'run'}", "group_size=4", "best=2"]
    whole, killed = tmp_path / "whole" / "a.jsonl", tmp_path / "killed" / "a.jsonl"
    first = run(*command, f"out={whole}")
    assert first.returncode == 0, first.stderr
    assert "after step 2: 40 prompts x 4 samples" in first.stdout
    process = subprocess.Popen([sys.executable, "-m", *command, f"out={killed}"])
    responses = killed.with_suffix(".responses.jsonl")
    while process.poll() is None:
        time.sleep(0.002)
        if responses.exists() and responses.stat().st_size:
            process.kill()  # after its first chunk of ten
            process.wait()
    assert process.returncode == -signal.SIGKILL
    assert 0 < responses.read_bytes().count(b"\n") < 160  # the last line may be incomplete
    assert run(*command, f"out={killed}").returncode == 0
    assert files(killed) == files(whole)
    (tmp_path / "outputs" / "runs").mkdir(parents=True)
    (tmp_path / "outputs" / "runs" / "one").symlink_to(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    latest = tmp_path / "latest" / "a.jsonl"
    assert run(command[0], "run=latest", *command[2:], f"out={latest}").returncode == 0
    assert files(latest) == files(whole)
