"""Tests the rules that end a run early: patience, a target, and the time limit of a queue."""

import math
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import rl4p
from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.runs.best import Best
from rl4p.runs.outcome import (
    END_SECONDS,
    EarlyStop,
    early_stop,
    idle_steps,
    objective,
    params_sha256,
    seconds_of,
)
from rl4p.runs.run_mirror import RunMirror
from rl4p.runs.saved_steps import chosen_step
from tests.support.runs import assert_trains, lines, summary

METRIC = "eval/arithmetic/pass_at_1"
CHECKPOINTS = SimpleNamespace(save_seconds=lambda: 0.0)
STATE = SimpleNamespace(params={"w": np.zeros(25_000_000, np.float32)})  # 100 MB: one second


def best(*values, mode="max"):
    rows = [{"step": step, METRIC: value} for step, value in enumerate(values)]
    made = Best(metric=METRIC, mode=mode)
    made.begin(rows)
    return made


@pytest.mark.parametrize(
    ("values", "mode", "options", "reason"),
    [
        ((0.0, 0.5, 0.4, 0.5), "max", {"patience": 3}, None),
        ((0.0, 0.5, 0.4, 0.5, 0.3), "max", {"patience": 3}, "patience"),
        ((0.9, 0.5, 0.4, 0.6), "max", {"patience": 1}, None),
        ((0.0, 0.5, 0.6, 0.6), "min", {"patience": 2}, "patience"),
        ((0.9, 0.5, 0.4), "max", {"target": 0.6}, None),  # step 0 does not count
        ((0.0, 0.6, 0.4), "max", {"target": 0.6}, "target"),
        ((0.0, 0.6, 0.4), "min", {"target": 0.4}, "target"),
        ((0.0,), "max", {"target": 0.0, "patience": 1}, None),
    ],
)
def test_patience_and_target_read_the_evaluations(values, mode, options, reason):
    rules = EarlyStop(best=best(*values, mode=mode), **options)
    assert rules.reason(CHECKPOINTS, STATE) == reason


def test_time_is_reserved_for_a_step_its_checkpoint_and_the_end(monkeypatch):
    rules = EarlyStop(best=None, seconds=1000.0)
    monkeypatch.setattr(rl4p, "STARTED", time.monotonic() - 2000)
    assert rules.reason(CHECKPOINTS, STATE) is None  # it has made no step yet
    rules.steps += [300.0, 20.0, 40.0]  # the first one compiled
    assert rules.reason(CHECKPOINTS, STATE) == "before"
    needed = 60 + 2 * 1 + END_SECONDS
    assert rules.needed(CHECKPOINTS, STATE) == pytest.approx(needed)
    slow = SimpleNamespace(save_seconds=lambda: 50.0)
    assert rules.needed(slow, STATE) == pytest.approx(60 + 100 + END_SECONDS)
    mirrored = replace(rules, mirror=RunMirror(url="memory://a"))
    assert mirrored.needed(slow, STATE) > rules.needed(slow, STATE)
    mirrored.mirror.slowest = 30.0
    assert mirrored.needed(slow, STATE) == pytest.approx(60 + 160 + END_SECONDS)
    for age, reason in ((1000 - needed - 5, None), (1000 - needed + 5, "before")):
        monkeypatch.setattr(rl4p, "STARTED", time.monotonic() - age)
        assert rules.reason(CHECKPOINTS, STATE) == reason


@pytest.mark.parametrize(
    ("before", "seconds"),
    [("00:01:30", 90.0), ("3:55:00", 14100.0), ("2-00:00:11", 172811.0), ("100:00:00", 360000.0)],
)
def test_a_duration_is_read_as_queues_write_it(before, seconds):
    assert seconds_of(before) == seconds


@pytest.mark.parametrize("before", ["90", "1:30", "00:60:00", "noon", "00:00:10", "-1:00:00"])
def test_another_duration_is_refused(before):
    with pytest.raises(InputError, match=f"stop.before={before} is "):
        seconds_of(before)


@pytest.mark.parametrize("word", ["stop.patience=3", "stop.target=0.5"])
def test_rules_without_a_metric_are_refused(word):
    with pytest.raises(InputError, match=f"{word} has no metric to compare: set checkpoint.best"):
        early_stop(compose([word]), None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rule", "reason"), [("stop.patience=2", "patience"), ("stop.target=0", "target")]
)
def test_a_run_ends_early_with_a_checkpoint_and_goes_on_without_the_rule(
    train, tmp_path: Path, rule, reason
):
    folder = tmp_path / "run"
    options = ("steps=40", "evaluation.every=1", f"checkpoint.best={METRIC}", rule)
    assert train(*options, f"hydra.run.dir={folder}").returncode == 0
    assert_trains(lines(folder))
    ended = summary(folder)
    assert (ended["status"], ended["stopped_by"]) == ("finished", reason)
    assert ended["step"] == chosen_step(folder / "checkpoints") < 40
    assert train(f"resume={folder}", small=()).returncode == 0
    assert summary(folder)["step"] == ended["step"]  # the rule still holds
    without = f"{rule.partition('=')[0]}=null"
    steps = f"steps={ended['step'] + 2}"
    assert train(f"resume={folder}", without, steps, small=()).returncode == 0
    assert summary(folder)["step"] == ended["step"] + 2
    assert summary(folder)["stopped_by"] == "steps"


def test_steps_that_did_nothing_are_counted(tmp_path):
    rows = [
        {"eval/t/pass_at_1": 0.5, "step": 0},
        {"update/skipped": 0.0, "update/grad_norm": 1.0},
        {"update/skipped": 2.0, "update/grad_norm": float("nan")},
        {"update/skipped": 0.0, "update/grad_norm": 0.0},
        {"update/skipped": 1.0, "update/grad_norm": float("inf")},
    ]
    assert idle_steps(rows) == {"skipped": 2, "zero_gradient": 1}


def test_the_digest_sees_names_shapes_dtypes_and_bytes():
    base = {"a": np.zeros((2, 3), np.float32), "b": np.ones(4, np.float32)}
    others = [
        base | {"a": np.zeros((3, 2), np.float32)},
        base | {"a": np.zeros((2, 3), np.int32)},
        base | {"b": np.full(4, np.float32(1) + np.float32(2**-23), np.float32)},
        {"a": base["a"], "c": base["b"]},
    ]
    digests = [params_sha256(tree) for tree in (base, *others)]
    assert len(set(digests)) == 5
    assert params_sha256(dict(reversed(base.items()))) == digests[0]


def test_a_search_maximizes_the_mean_pass_at_1_of_the_last_evaluation():
    last = {"eval/a/pass_at_1": 0.5, "eval/b/pass_at_1": 1.0, "eval/b/pass_at_8": 0.0}
    first = {"eval/a/pass_at_1": 0.1}
    assert objective({"evaluation": {"first": first, "last": last, "best": {}}}) == 0.75
    assert math.isnan(objective({"evaluation": {"first": {}, "last": {}, "best": {}}}))
