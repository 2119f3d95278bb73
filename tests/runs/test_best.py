"""Tests that the best checkpoint is kept, found again, and never replaced by a worse one."""

import json
import math
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.learner.optimizer import AdamW
from rl4p.runs.best import Best, best_checkpoint, best_of
from rl4p.runs.checkpoint import Orbax
from rl4p.runs.folder import save_config
from rl4p.runs.record import Record
from rl4p.runs.saved_steps import chosen_step, steps_of
from tests.support.runs import assert_trains, lines, summary

METRIC = "eval/arithmetic/pass_at_1"
BEST = f"checkpoint.best={METRIC}"


def evaluation(every=5):
    names = [METRIC, "eval/arithmetic/avg_at_4"]
    return SimpleNamespace(every=every, names=lambda: names)


@pytest.fixture
def saved(tmp_path, prompts, params, make_state):
    """Returns a function that evaluates steps in a run folder, and gives the checkpoints left."""

    def run(values, mode="max", keep=1, begin=1):
        best = Best(metric=METRIC, mode=mode)
        record = Record(tmp_path)
        best.begin(record.metrics())
        options = Orbax(every=0, keep=keep, best=METRIC, mode=mode)
        save_config(compose([BEST, f"checkpoint.mode={mode}"]), "config.yaml", tmp_path / ".hydra")
        with options.open(tmp_path, {}, best) as checkpoints:
            for step, value in enumerate(values, begin):
                state = make_state(params, AdamW(), step=step)
                metrics = {} if value is None else {METRIC: value}
                record.log(step, metrics)
                info = SimpleNamespace(step=step, state=state, metrics=metrics)
                best(info)
                if step == begin + len(values) - 1:
                    checkpoints(info)
        return steps_of(tmp_path / "checkpoints")

    return run


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("values", "mode", "left"),
    [
        ([0.1, 0.5, 0.3, 0.5, 0.2], "max", [2, 5]),  # of equal values the first
        ([0.1, 0.5, 0.3, 0.5, 0.2], "min", [1, 5]),
        ([0.1, 0.2, 0.3], "max", [3]),
        ([None, 0.2, math.nan, None], "max", [2, 4]),
    ],
)
def test_the_best_is_kept_beside_the_newest(saved, tmp_path, values, mode, left):
    assert saved(values, mode) == left
    assert chosen_step(tmp_path / "checkpoints", "best") == left[0]
    assert chosen_step(tmp_path / "checkpoints") == left[-1]


@pytest.mark.slow
def test_a_resumed_run_knows_its_best_and_deletes_it_for_a_better_one_only(saved):
    assert saved([0.1, 0.5, 0.3]) == [2, 3]
    assert saved([0.4, 0.2], begin=4) == [2, 5]
    assert saved([0.6, 0.2], begin=6) == [6, 7]


def test_the_evaluation_before_the_first_step_does_not_count():
    best = Best(metric=METRIC)
    best.begin([{"step": 0, METRIC: 0.9}, {"step": 1, METRIC: 0.5}, {"step": 2, METRIC: 0.4}])
    assert (best.step(), best.since()) == (1, 1)


@pytest.mark.slow
def test_a_run_without_a_best_checkpoint_says_so(tmp_path):
    save_config(compose([]), "config.yaml", tmp_path / ".hydra")
    with pytest.raises(InputError, match="has no best checkpoint, because its"):
        best_checkpoint(tmp_path, [1])
    save_config(compose([BEST]), "config.yaml", tmp_path / ".hydra")
    with pytest.raises(InputError, match="is of a step with eval/arithmetic"):
        best_checkpoint(tmp_path, [1])


@pytest.mark.parametrize(
    ("overrides", "every", "sentence"),
    [
        (["checkpoint.mode=min"], 5, "has no effect without checkpoint.best"),
        (["checkpoint.best=eval/arithmetic/pas_at_1"], 5, f"write checkpoint.best={METRIC}"),
        (["checkpoint.best=reward/mean"], 5, f"is not a metric of the evaluations. .*{METRIC}"),
        ([BEST], 0, "evaluation.every=0 evaluates no step but the last"),
    ],
)
def test_options_that_cannot_act_are_refused(overrides, every, sentence):
    with pytest.raises(InputError, match=sentence):
        best_of(compose(overrides), evaluation(every))


KILLED = (
    *("steps=120", "checkpoint.every=7", "checkpoint.keep=1", "evaluation.every=1"),
    *("evaluation.samples=4", "checkpoint.best=eval/arithmetic/avg_at_4", "samples.every=0"),
    # Slow enough that the samples of a group differ in all steps.
    *("optimizer.learning_rate=1e-4", "group_size=8"),
)
SAMPLED = "eval/arithmetic/avg_at_4"


def best_value(folder: Path) -> float | None:
    """Returns the value of the best checkpoint, which must be the best of all saved steps."""
    steps = steps_of(folder / "checkpoints")
    if not steps:
        return None
    values = {row["step"]: row[SAMPLED] for row in lines(folder) if row["step"] > 0}
    best = chosen_step(folder / "checkpoints", "best")  # refuses a damaged one
    assert values[best] == max(value for step, value in values.items() if step <= steps[-1])
    return values[best]


@pytest.mark.slow
def test_a_run_killed_at_random_moments_never_loses_its_best(command, train, tmp_path):
    draw, whole, folder = random.Random(0), tmp_path / "whole", tmp_path / "killed"
    assert train(*KILLED, f"hydra.run.dir={whole}").returncode == 0
    assert_trains(lines(whole))
    assert len({row[SAMPLED] for row in lines(whole)}) > 2  # a checkpoint may be worse
    kills, last = 0, None
    line = command(*KILLED, f"hydra.run.dir={folder}")
    while kills < 10:
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        steps = steps_of(folder / "checkpoints")[-1:] or [0]
        while process.poll() is None and steps_of(folder / "checkpoints")[-1:] in ([], steps):
            time.sleep(0.001)
        time.sleep(draw.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        if process.wait() == 0:
            break
        kills += 1
        value = best_value(folder)
        if value is not None:
            assert last is None or value >= last
            last = value
            line = command(f"resume={folder}", small=())
    assert kills >= 5
    assert train(f"resume={folder}", small=()).returncode == 0
    assert lines(folder) == lines(whole)
    assert summary(folder)["best"] == summary(whole)["best"]
    assert steps_of(folder / "checkpoints") == steps_of(whole / "checkpoints")


@pytest.mark.slow
def test_the_best_checkpoint_is_resumed_exported_and_evaluated(train, tmp_path):
    folder = tmp_path / "run"
    options = ("steps=12", "checkpoint.keep=1", "evaluation.every=1", f"checkpoint.best={METRIC}")
    assert train(*options, f"hydra.run.dir={folder}").returncode == 0
    assert_trains(lines(folder))
    best = summary(folder)["best"]
    values = {row["step"]: row[METRIC] for row in lines(folder) if row["step"] > 0}
    assert best == {
        "metric": METRIC,
        "mode": "max",
        "step": min(step for step in values if values[step] == max(values.values())),
        "value": max(values.values()),
    }
    for words in (
        ["export", f"run={folder}", f"out={tmp_path}/policy"],
        ["evaluate", f"run={folder}", f"out={tmp_path}/evaluation"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", f"rl4p.{words[0]}", *words[1:], "checkpoint=best"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert f"step {best['step']}" in done.stdout or words[0] == "evaluate"
    evaluated = json.loads((tmp_path / "evaluation/evaluation.json").read_text())
    assert evaluated["evaluated"]["step"] == best["step"]
    if best["step"] < 12:
        done = train(f"resume={folder}", "checkpoint=best", "steps=12", small=())
        assert done.returncode == 0
        assert summary(folder)["resumed_from"] == best["step"]
        assert (folder / "checkpoints/12.left").is_dir()
