"""Tests that finished runs are read, and that every other one is named with its reason."""

import pytest

from rl4p.base.errors import InputError
from rl4p.tools.comparison.runs import find, read, read_folders
from tests.support.compared_runs import METRIC, write_run


def names(folders):
    return [folder.name for folder in folders]


def test_a_run_is_read_with_its_seed_metrics_samples_and_options(tmp_path):
    rloo = {"advantage": "rloo"}
    folder = tmp_path / "run"
    write_run(folder, seed=3, last=0.8, overrides=["advantage=rloo"], choices=rloo, devices=2)
    run = read(folder)
    assert run.name == str(folder)
    assert run.seed == 3
    assert run.rows[-1][METRIC] == 0.8
    assert run.samples[0].prompt == "2+3="
    assert run.choices == {"advantage": "rloo"}
    assert list(run.overrides) == ["advantage=rloo", "seed=3"]
    assert run.devices == 2


def test_runs_are_found_at_any_depth_in_the_order_of_their_numbers(tmp_path):
    for place in ("a/10", "a/9", "b/2026-11-23/12-00-00"):
        write_run(tmp_path / place)
    assert names(find(tmp_path)) == ["9", "10", "12-00-00"]
    assert names(find(tmp_path / "a" / "9")) == ["9"]
    assert names(find(tmp_path / "*")) == ["9", "10", "12-00-00"]


def test_a_folder_in_a_run_is_no_run(tmp_path):
    folder = write_run(tmp_path / "run")
    (folder / "checkpoints" / "4").mkdir(parents=True)
    (folder / "checkpoints" / "4" / "config.yaml").write_text("{}")
    assert find(tmp_path) == [folder]
    runs, _ = read_folders([folder, tmp_path, tmp_path / "r*"])  # given three times, it counts once
    assert [run.name for run in runs] == [str(folder)]


@pytest.mark.parametrize(("name", "words"), [("none", "does not exist"), ("", "has no run")])
def test_a_folder_without_runs_is_an_error(tmp_path, name, words):
    with pytest.raises(InputError, match=words):
        find(tmp_path / name)


def broken(folder, name, content):
    write_run(folder)
    (folder / name).write_text(content)


FAULTS = {
    "failed": (lambda f: write_run(f, status="failed"), "it failed at step 4"),
    "stopped": (lambda f: write_run(f, status="stopped"), "it was stopped at step 4"),
    "running": (lambda f: write_run(f, status=None), "is still running or was killed, at step 4"),
    "evaluation": (lambda f: write_run(f, kind="evaluation"), "it is an evaluation, and no train"),
    "empty": (lambda f: write_run(f, rows=[]), "it has no metrics"),
    "early": (lambda f: (f / ".hydra").mkdir(parents=True), "it ended before its first step"),
    "config": (lambda f: broken(f, "config.yaml", "{: :"), "its files cannot be read"),
    "list": (lambda f: broken(f, "config.yaml", "[1]"), "config.yaml is not a mapping"),
    "seed": (lambda f: broken(f, "config.yaml", "seed: many"), "its files cannot be read"),
    "environment": (lambda f: broken(f, "environment.json", "[]"), "cannot be read"),
    "metrics": (lambda f: broken(f, "metrics.jsonl", "1\n"), "line 1 is not a JSON object"),
    "values": (lambda f: broken(f, "metrics.jsonl", '{"step": 0, "a": null}\n'), "cannot be read"),
    "summary": (lambda f: broken(f, "summary.json", "{"), "its files cannot be read"),
    "bytes": (lambda f: (write_run(f), (f / "config.yaml").write_bytes(b"\xff")), "cannot be read"),
}


@pytest.mark.parametrize(("write", "reason"), FAULTS.values(), ids=FAULTS)
def test_a_run_that_cannot_be_compared_is_named_and_stops_nothing(tmp_path, write, reason):
    good = write_run(tmp_path / "good")
    write(tmp_path / "bad")
    runs, left_out = read_folders([tmp_path])
    assert [run.name for run in runs] == [str(good)]
    (bad,) = left_out
    assert bad.name == str(tmp_path / "bad")
    assert reason in bad.reason


@pytest.mark.parametrize("status", ["failed", None])
def test_the_reason_of_a_failure_is_the_last_line_of_its_log(tmp_path, status):
    folder = tmp_path / "bad"
    if status:
        write_run(folder, status=status)
    else:
        (folder / ".hydra").mkdir(parents=True)
    (folder / "train.log").write_text("The job ended\nrl4p.base.errors.RunError: out of memory\n\n")
    _, (bad,) = read_folders([tmp_path])
    assert bad.reason.endswith(" (rl4p.base.errors.RunError: out of memory)")
