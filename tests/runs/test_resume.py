"""Tests that a stopped or killed run resumes as if it had never stopped."""

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.runs import (
    assert_gone_on,
    assert_trains,
    interrupt,
    kill,
    lines,
    resume,
    summary,
)

# With all kinds of memory: a critic, two controllers, a moving average of the weights.
MEMORY = ("advantage=gae", "critic=shared", "kl=adaptive", "entropy=adaptive", "ema.decay=0.5")
RECORDED = ("metrics.jsonl", "samples.jsonl", "summary.json")
STEPS = ("steps=20", "checkpoint.every=3", *MEMORY)


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert train(*STEPS, f"hydra.run.dir={folder}").returncode == 0
    assert_trains(lines(folder))
    return folder


@pytest.mark.slow
def test_a_killed_run_goes_on_bit_for_bit(whole, command, train, tmp_path):
    folder = tmp_path / "run"
    kill(command, folder, STEPS)
    resume(train, folder)
    assert summary(folder)["resumed_from"] in range(3, 20, 3)
    assert_gone_on(folder, whole)


@pytest.mark.slow
def test_a_killed_run_on_conversations_goes_on_bit_for_bit(command, train, tmp_path):
    """Two answers of a conversation are trained; the run is killed after its first epoch."""
    path, whole, folder = tmp_path / "chats.jsonl", tmp_path / "whole", tmp_path / "run"
    roles, rows = ("user", "assistant") * 2, []
    for i in range(16):
        texts = (f"{i}+1", f"#### {i + 1}", f"{i}+2", f"#### {i + 2}")
        messages = [
            {"role": role, "content": text} for role, text in zip(roles, texts, strict=True)
        ]
        rows.append(json.dumps({"messages": messages}) + "\n")
    path.write_text("".join(rows))
    of_chats = (
        *("experiment=conversations_sft", f"data.path={path}", "data.held_out_size=4"),
        *("model=scratch", "model.width=32", "model.layers=1", "model.heads=2", "tracker=none"),
        *("model.feed_forward_width=64", "max_prompt_tokens=48", "max_response_tokens=16"),
        *("prompts_per_step=4", "steps=20", "checkpoint.every=4", "evaluation.every=4"),
        *("samples.every=2", "optimizer.warmup_steps=1", "optimizer.learning_rate=0.01"),
        *("update.microbatch_widths=1", "debug=on"),
    )
    assert train(*of_chats, f"hydra.run.dir={whole}", small=()).returncode == 0
    assert all(row["update/grad_norm"] > 0 for row in lines(whole) if row["step"] > 0)
    kill(command, folder, of_chats, small=())
    resume(train, folder)
    assert_gone_on(folder, whole)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_run_saves_says_how_to_resume_and_goes_on(
    whole, command, train, tmp_path, number
):
    folder = tmp_path / "run"
    stopped = command(*STEPS, f"hydra.run.dir={folder}")
    code = interrupt(stopped, folder / "metrics.jsonl", number)
    assert code == 3
    stopped = summary(folder)
    assert stopped["status"] == "stopped"
    assert (folder / "checkpoints" / str(stopped["step"])).is_dir()
    resume(train, folder)
    assert summary(folder)["resumed_from"] == stopped["step"]
    assert_gone_on(folder, whole)


# Gives a command a terminal, closes it once a file exists, and returns the exit code.
TERMINAL = """
import os, pty, select, signal, sys
end, awaited, *command = sys.argv[1:]
process, terminal = pty.fork()
if process == 0:
    signal.signal(signal.SIGHUP, signal.Handlers[end])
    os.execv(command[0], command)
while not os.path.exists(awaited):
    if select.select([terminal], [], [], 0.002)[0]:
        os.read(terminal, 1000)
os.close(terminal)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
"""


def in_a_terminal_that_closes(end: str, awaited: Path, line: list[str]) -> int:
    """Returns the exit code of a run whose terminal closes when a file exists.

    Args:
      end: the name of what the process does with SIGHUP, SIG_DFL or SIG_IGN.
    """
    program = [sys.executable, "-c", TERMINAL, end, str(awaited), *line]
    return subprocess.run(program, check=False).returncode


@pytest.mark.slow
def test_a_run_that_ignores_the_end_of_its_terminal_goes_on(whole, command, tmp_path):
    folder = tmp_path / "run"
    line = command(*STEPS, f"hydra.run.dir={folder}")
    assert in_a_terminal_that_closes("SIG_IGN", folder / "metrics.jsonl", line) == 0
    assert summary(folder)["status"] == "finished"
    assert summary(folder)["params_sha256"] == summary(whole)["params_sha256"]


@pytest.mark.slow
def test_a_run_whose_terminal_closes_saves_and_goes_on(whole, command, train, tmp_path):
    folder = tmp_path / "run"
    line = command(*STEPS, f"hydra.run.dir={folder}")
    assert in_a_terminal_that_closes("SIG_DFL", folder / "metrics.jsonl", line) == 3
    stopped = summary(folder)
    assert stopped["status"] == "stopped"
    assert (folder / "checkpoints" / str(stopped["step"])).is_dir()
    resume(train, folder)
    assert_gone_on(folder, whole)


@pytest.mark.slow
def test_more_steps_may_be_asked_for_but_nothing_else(whole, train, tmp_path):
    process = train(f"resume={whole}", "advantage=rloo", small=())
    assert process.returncode == 2
    assert "advantage._target_ was" in process.stderr
    before = {whole / name: (whole / name).read_bytes() for name in RECORDED}
    process = train(f"resume={whole}", "steps=2", small=())
    assert process.returncode == 2
    assert "is already at step 20" in process.stderr
    assert {path: path.read_bytes() for path in before} == before
    folder = tmp_path / "run"
    shorter = ("steps=6", "checkpoint.every=3", *MEMORY)
    assert train(*shorter, f"hydra.run.dir={folder}").returncode == 0
    assert train(f"resume={folder}", "steps=20", small=()).returncode == 0
    assert_gone_on(folder, whole)


@pytest.mark.slow
def test_a_run_killed_before_its_first_checkpoint_begins_anew(whole, command, train, tmp_path):
    folder = tmp_path / "run"
    killed = command(*STEPS, f"hydra.run.dir={folder}")
    interrupt(killed, folder / "metrics.jsonl", signal.SIGKILL)
    assert train(f"resume={folder}", small=()).returncode == 0
    assert_gone_on(folder, whole)


@pytest.mark.slow
def test_a_run_that_lost_its_checkpoints_keeps_its_record(whole, train, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(whole, folder, ignore=shutil.ignore_patterns("checkpoints"))
    process = train(f"resume={folder}", "steps=21", small=())
    assert process.returncode == 2
    assert "no finished checkpoint" in process.stderr
    assert lines(folder) == lines(whole)
    assert summary(folder) == summary(whole)
