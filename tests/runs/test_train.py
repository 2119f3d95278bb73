"""Tests `python -m rl4p.train` from the outside: its folder, its exit codes, its promises."""

import gzip
import json
from pathlib import Path

import pytest

from tests.support.documents import DOCS, write_files
from tests.support.runs import assert_same_checkpoint, assert_trains, lines, summary

METRICS = {
    "reward/mean", "reward/std", "reward/correct", "reward/format", "reward/capital",
    "reward/invalid",
    "rollout/response_tokens", "rollout/truncated", "rollout/tokens_per_second",
    "rollout/logprob_gap_max", "rollout/logprob_gap_mean", "advantage/zero_std_groups",
    "advantage/mean", "advantage/max", "update/loss", "update/grad_norm", "update/entropy",
    "update/approx_kl", "update/clip_low", "update/clip_high", "update/learning_rate",
    "update/skipped", "update/ess", "rollout/mismatch_kl",
    "time/rollout", "time/reward", "time/scoring", "time/advantage", "time/update", "time/step",
    "time/compile", "time/compilations", "staleness/mean", "staleness/max", "step",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(train, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "first"
    process = train("steps=3", f"hydra.run.dir={folder}")
    assert process.returncode == 0, process.stderr
    assert "4 prompts x 2 samples = 8 sequences" in process.stdout
    return folder


def test_a_run_leaves_its_record(folder):
    rows = lines(folder)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    raw = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    evaluation = {"eval/arithmetic/pass_at_1", "eval/arithmetic/prompts"}
    assert set(raw[1]) == METRICS
    of_evaluation = {"time/evaluation", "time/evaluation_compile"}
    assert set(raw[2]) == METRICS | evaluation | of_evaluation
    assert raw[0].keys() > of_evaluation
    assert raw[0]["time/evaluation_compile"] > 0
    for row in raw[1:]:  # each second of a step is of one phase, or of compilation
        parts = ("rollout", "reward", "scoring", "advantage", "update", "compile")
        assert sum(row[f"time/{name}"] for name in parts) <= row["time/step"] + 1e-6
    assert set(rows[0]) == evaluation | {"step"}
    assert all(row["rollout/logprob_gap_max"] < 1e-4 for row in rows[1:])
    compiled = [row["time/compilations"] for row in raw[1:]]
    assert compiled[0] > 0
    assert compiled[2] == 0  # nothing is compiled once two steps have run
    sample = json.loads((folder / "samples.jsonl").read_text().splitlines()[0])
    assert sample["step"] == 2
    assert {"id", "prompt", "response", "answer", "reward", "terms"} < set(sample)
    assert (folder / "plots" / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (folder / "checkpoints" / "3").is_dir()


def test_the_summary_is_the_contract_for_scripts(folder):
    found = summary(folder)
    assert found["status"] == "finished"
    assert found["step"] == 3
    assert set(found["evaluation"]) == {"first", "last", "best"}
    phases = {"rollout", "reward", "scoring", "advantage", "update", "evaluation"}
    assert set(found["seconds"]) == {"total", "compile"} | phases
    assert set(found["median_seconds"]) == phases
    assert all(found["seconds"][name] >= found["median_seconds"][name] > 0 for name in phases)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    times = [row["time/evaluation"] for row in rows if "time/evaluation" in row]
    assert len(times) == 3  # before the first step, after the second and after the last
    assert found["seconds"]["evaluation"] == pytest.approx(sum(times))
    assert found["compilation"]["programs"] >= found["compilation"]["from_cache"] >= 0
    assert found["compilation"]["programs"] > 0
    assert found["compilation"]["seconds"] > 0
    of_steps = sum(
        row.get("time/compile", 0) + row.get("time/evaluation_compile", 0) for row in rows
    )
    assert of_steps <= found["seconds"]["compile"] <= found["compilation"]["seconds"] + 1e-6
    assert sum(found["seconds"][name] for name in (*phases, "compile")) < found["seconds"]["total"]
    assert found["resumed_from"] is None
    fields = {"name", "first_step", "step", "metric", "value", "meaning", "remedy"}
    assert all(set(warning) == fields for warning in found["warnings"])
    assert len(found["params_sha256"]) == 64


@pytest.mark.slow
def test_a_second_run_reads_its_programs_from_the_users_cache(train, tmp_path, monkeypatch):
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = []
    for name in ("first", "second"):
        process = train("steps=1", f"hydra.run.dir={tmp_path / name}")
        assert process.returncode == 0, process.stderr
        found.append(summary(tmp_path / name)["compilation"])
    assert found[0]["programs"] == found[1]["programs"] == found[1]["from_cache"]
    assert found[0]["from_cache"] < found[0]["programs"] / 2
    assert "from the cache)" in process.stdout
    assert lines(tmp_path / "first") == lines(tmp_path / "second")


@pytest.mark.slow
def test_a_profile_holds_the_programs_of_a_step(train, tmp_path):
    process = train("steps=3", "debug.profile=true", f"hydra.run.dir={tmp_path}")
    assert process.returncode == 0, process.stderr
    (trace,) = tmp_path.glob("profile/**/perfetto_trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = {event.get("name", "") for event in events}
    assert any("gradient_step" in name for name in names)


@pytest.mark.slow
def test_the_same_run_twice_agrees_in_every_digit(folder, train, tmp_path):
    assert_trains(lines(folder))
    assert train("steps=3", f"hydra.run.dir={tmp_path / 'again'}").returncode == 0
    assert lines(tmp_path / "again") == lines(folder)
    assert summary(tmp_path / "again")["params_sha256"] == summary(folder)["params_sha256"]
    assert_same_checkpoint(tmp_path / "again", folder)


@pytest.mark.slow
def test_a_second_run_in_the_folder_is_refused(folder, train):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    process = train("steps=3", "seed=5", f"hydra.run.dir={folder}")
    assert process.returncode == 2
    assert f"resume={folder}" in process.stderr
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_questions_from_a_file_run_from_end_to_end(train, tmp_path, monkeypatch):
    """On a terminal that lacks their characters."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    rows = [
        {"question": f"Zoë 有 {n} pens 🙂 and buys {n} more. How many?", "answer": f"#### {2 * n}"}
        for n in range(20)
    ]
    rows.append({"question": "why? " * 100, "answer": "#### 1"})
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    small = [
        "model=scratch", "model.width=32", "model.layers=1", "model.heads=2",
        "prompts_per_step=4", "group_size=2", "max_response_tokens=8", "tracker=none",
    ]  # fmt: skip
    process = train(
        "data=gsm8k", f"data.path={path}", "data.held_out_size=4", "max_prompt_tokens=128",
        "steps=2", "samples.every=1", f"hydra.run.dir={tmp_path / 'run'}", small=small,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "pens ? and buys" in process.stdout
    assert "failed" not in process.stderr
    assert "(1 dropped for being longer than max_prompt_tokens)" in process.stdout
    assert "eval/gsm8k/pass_at_1" in summary(tmp_path / "run")["evaluation"]["last"]


@pytest.mark.slow
def test_samples_without_differences_are_remarked_upon(train, tmp_path):
    idle = "update.clip_high=0.28"
    process = train("steps=1", "rollout.temperature=0", idle, f"hydra.run.dir={tmp_path / 'run'}")
    assert process.returncode == 0
    assert process.stderr.count("at temperature 0 all samples of a prompt are equal") == 1
    assert process.stderr.count(f"{idle} has no effect, because a step has one update") == 1
    warned = [warning["name"] for warning in summary(tmp_path / "run")["warnings"]]
    assert "no_advantage" in warned
    (sentence,) = summary(tmp_path / "run")["idle_options"]
    assert sentence.startswith(idle)
    assert lines(tmp_path / "run")[1]["update/grad_norm"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["better", "moving"])
def test_phases_of_the_users_own_are_named_in_yaml_and_on_the_command_line(train, tmp_path, name):
    """Uses the phases in the documents, of which `moving` has memory."""
    write_files(DOCS / "parts.md", tmp_path)
    write_files(DOCS / "reward.md", tmp_path)
    process = train(
        "--config-dir=conf", f"advantage={name}",
        "+reward.terms.brevity._target_=my_rewards.Brevity",
        "trusted_targets=[my_phases,my_memory,my_rewards]", "steps=2", "hydra.run.dir=run",
        cwd=tmp_path,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    first = lines(tmp_path / "run")[1]
    assert first["reward/brevity"] > 0
    assert first["advantage/max"] > 0


@pytest.mark.slow
def test_bad_input_is_one_sentence_and_exit_code_2(train, tmp_path):
    process = train("max_prompt_tokens=3", "steps=1", f"hydra.run.dir={tmp_path / 'run'}")
    assert process.returncode == 2
    assert process.stderr.startswith("max_prompt_tokens=3 is too small")
    assert len(process.stderr.strip().splitlines()) == 1


LEAVES = """
import os
from dataclasses import dataclass

@dataclass(frozen=True, kw_only=True)
class Leaves:
    weight: float = 1.0

    def __call__(self, episodes):
        if os.path.exists("armed"):
            os._exit(0)
        return [1.0] * len(episodes)
"""


@pytest.mark.slow
def test_a_run_that_its_own_code_ends_does_not_look_finished(train, tmp_path):
    (tmp_path / "my_bomb.py").write_text(LEAVES)
    trusted = "trusted_targets=[my_bomb]"
    own = ("+reward.terms.own._target_=my_bomb.Leaves", trusted, "hydra.run.dir=run")
    assert train("steps=1", *own, cwd=tmp_path).returncode == 0
    assert summary(tmp_path / "run")["status"] == "finished"
    (tmp_path / "armed").touch()
    ended = train("resume=run", "steps=3", trusted, cwd=tmp_path, small=())
    assert ended.returncode == 1
    assert "reward.terms.own (my_bomb.Leaves) called os._exit(0) (" in ended.stderr
    assert not (tmp_path / "run" / "summary.json").exists()
    (tmp_path / "armed").unlink()
    assert train("resume=run", "steps=3", trusted, cwd=tmp_path, small=()).returncode == 0
    assert summary(tmp_path / "run")["step"] == 3
