"""Tests the estimates of the time that a run and its sweep still take."""

import json

import pytest
from hydra.types import RunMode
from omegaconf import OmegaConf

from rl4p.loop import stopwatch as compilation
from rl4p.loop.stopwatch import WORK
from rl4p.runs import remaining_time
from rl4p.runs.remaining_time import RemainingTime, SweepJobs, in_words, jobs_of_sweep
from rl4p.runs.sweep import SweepJob, write_jobs
from tests.support.clock import Clock


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(remaining_time, "clock", clock := Clock())
    return clock


def test_the_remaining_time_has_the_evaluations_and_no_compilation(clock, monkeypatch):
    """After step 3, evaluations follow steps 4, 8 and 10, the last one; two steps compile."""
    spans = compilation.defaultdict(compilation.Spans)
    monkeypatch.setattr(compilation, "COMPILING", spans)
    time = RemainingTime(10, 4)
    time.begin({"time/evaluation": 7.0})
    for compiled, metrics in ((198, {}), (40, {}), (0, {"time/evaluation": 7.0})):
        spans[WORK.get()].add(clock.now, clock.now + compiled)
        clock.now += compiled + 2 + metrics.get("time/evaluation", 0)
        time.add_step(metrics)
    assert time.words(3) == f"{7 * 2 + 3 * 7} s left"
    assert time.words(9) == f"{2 + 7} s left"
    assert time.left(10) == 0.0


def test_a_burst_of_slow_steps_does_not_move_the_remaining_time_but_a_lasting_change_does(clock):
    time = RemainingTime(100)
    time.begin({})
    lefts = []
    for seconds in (*[1] * 20, *[3] * 9, *[3] * 3):
        clock.now += seconds
        time.add_step({})
        lefts.append(time.left(90))
    assert lefts[:29] == [10.0] * 29
    assert lefts[-1] == 30.0


def ended(folder, total, compiled, step=10):
    folder.mkdir()
    seconds = {"total": total, "compile": compiled}
    summary = {"status": "finished", "step": step, "seconds": seconds}
    (folder / "summary.json").write_text(json.dumps(summary))


def test_the_time_of_a_sweep_is_that_of_the_jobs_that_wait(clock, tmp_path):
    jobs = [str(number) for number in range(6)]
    sweep = SweepJobs(tmp_path, jobs, tmp_path / "0", 10, parallel=1)
    time = RemainingTime(10, sweep=sweep)
    clock.now += 5  # until the first step
    time.begin({})
    clock.now += 2
    time.add_step({})
    assert time.words(1) == f"18 s left, {18 + 5 * 25} s left of the sweep"  # of own jobs of 25 s
    ended(tmp_path / "1", 130, 100)
    assert time.words(1).endswith(" 143 s left of the sweep")  # results are read now and then
    clock.now += 11
    assert sweep.left(25) == 4 * 30  # its compilation left out
    ended(tmp_path / "2", 40, 1)
    ended(tmp_path / "3", 42, 1, step=9)  # a sweep that is continued with more steps
    (tmp_path / "4").mkdir()
    (tmp_path / "4" / "failure.json").touch()
    clock.now += 11
    assert sweep.left(25) == 2 * (30 + 39) / 2  # of 3 and 5
    ended(tmp_path / "5", 44, 1)
    sweep.parallel = 2  # the last job runs at the same time
    clock.now += 11
    assert sweep.left(25) == 0


@pytest.mark.parametrize(
    ("jobs", "launcher", "names", "parallel"),
    [
        ([["0", ["seed=0"]], ["a/1", ["seed=1"]]], {}, ["0", "a/1"], 1),
        ([["0", ["seed=0"]], ["1", ["seed=1"]]], {"n_jobs": 2}, ["0", "1"], 2),
        ([], {"array_parallelism": 8}, ["0", "1", "2"], 8),
    ],
    ids=["basic", "joblib", "search"],
)
def test_the_jobs_of_a_sweep_are_read_from_its_folder(
    tmp_path, monkeypatch, jobs, launcher, names, parallel
):
    hydra = OmegaConf.create(
        {"mode": RunMode.MULTIRUN, "launcher": launcher, "sweeper": {"n_trials": 3}}
    )
    monkeypatch.setattr(remaining_time.HydraConfig, "get", lambda: hydra)
    own = tmp_path / names[-1]
    assert jobs_of_sweep(own, 10) is None  # no sweep has begun here
    write_jobs(tmp_path, [SweepJob(folder=x, overrides=tuple(y), own="") for x, y in jobs])
    sweep = jobs_of_sweep(own, 10)
    assert sweep is not None
    assert sweep.others == [tmp_path / name for name in names[:-1]]
    assert (sweep.steps, sweep.parallel) == (10, parallel)
    hydra.mode = RunMode.RUN  # of a job that is resumed alone
    assert jobs_of_sweep(own, 10) is None


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.4, "0 s"), (599.4, "599 s"), (600, "10 min"), (5400, "90 min"), (45000, "12.5 h")],
)
def test_a_time_has_the_unit_that_keeps_it_short(seconds, words):
    assert in_words(seconds) == words
