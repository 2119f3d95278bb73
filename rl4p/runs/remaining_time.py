"""Estimates of the time that a run, and the sweep that it belongs to, still take."""

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf

from rl4p.base.errors import InputError
from rl4p.loop.stopwatch import clock, compiled_within
from rl4p.runs.folder import JOBS
from rl4p.runs.sweep import FAILURE, SUMMARY, document, read_jobs

RECENT = 20  # steps, and evaluations, from whose times the rest is estimated
SECONDS_BETWEEN_READINGS = 10.0  # of the results of the other jobs of a sweep


class RemainingTime:
    """Estimates how long a run still takes, from the steps and evaluations so far.

    A step lasts from the end of the last one, its hooks included. Compilation is left out. With
    `evaluation_every=0` the only evaluation is after the last step.
    """

    def __init__(
        self, steps: int, evaluation_every: int = 0, sweep: "SweepJobs | None" = None
    ) -> None:
        self.steps, self.evaluation_every, self.sweep = steps, evaluation_every, sweep
        self.started = self.last = clock()
        self.seconds: list[float] = []  # of steps
        self.evaluations: list[float] = []

    def begin(self, metrics: Mapping[str, float]) -> None:
        """Begins the first step."""
        self.last = clock()
        self.add_evaluation(metrics)

    def add_evaluation(self, metrics: Mapping[str, float]) -> float:
        """Adds the time of the evaluation in some metrics, and returns it; 0 without one."""
        if (seconds := metrics.get("time/evaluation")) is None:
            return 0.0
        self.evaluations.append(seconds)
        return seconds

    def add_step(self, metrics: Mapping[str, float]) -> None:
        """Adds a step that has just ended."""
        now = clock()
        seconds = now - self.last - compiled_within(self.last, now)
        self.seconds.append(max(0.0, seconds - self.add_evaluation(metrics)))
        self.last = now

    def left(self, step: int) -> float:
        """Returns the estimated seconds after a step, with its evaluations."""
        if step >= self.steps:
            return 0.0
        every = self.evaluation_every
        evaluations = 1 + ((self.steps - 1) // every - step // every if every else 0)
        seconds = statistics.median(self.seconds[-RECENT:]) * (self.steps - step)
        if self.evaluations:
            seconds += statistics.median(self.evaluations[-RECENT:]) * evaluations
        return seconds

    def words(self, step: int) -> str:
        """Returns the estimate after a step in words, with that of the sweep if there is one."""
        left = self.left(step)
        words = f"{in_words(left)} left"
        if self.sweep is not None:
            now = clock()
            whole = now - self.started - compiled_within(self.started, now) + left
            words += f", {in_words(left + self.sweep.left(whole))} left of the sweep"
        return words


class SweepJobs:
    """The other jobs of the sweep that a run belongs to, as their results say."""

    def __init__(
        self, folder: Path, jobs: Sequence[str], own: Path, steps: int, parallel: int
    ) -> None:
        self.others = [folder / job for job in jobs if folder / job != own]
        self.steps, self.parallel = steps, parallel
        self.read_at, self.waiting, self.typical = -float("inf"), 0, 0.0

    def left(self, whole: float) -> float:
        """Returns the estimated seconds that the sweep goes on after this job.

        Args:
          whole: the seconds of this job from its start to its end, as far as they are known.
        """
        if clock() - self.read_at > SECONDS_BETWEEN_READINGS:
            self.read_at, unfinished, ended = clock(), 0, []
            for folder in self.others:
                summary = document(folder / SUMMARY)
                if summary.get("status") == "finished" and summary.get("step", 0) >= self.steps:
                    ended.append(summary["seconds"])
                else:
                    unfinished += not (folder / FAILURE).exists()
            # Jobs of one process compile once: while few have ended, compilation is left out.
            few = len(ended) < 3
            times = [each["total"] - few * each["compile"] for each in ended]
            self.typical = statistics.median(times) if times else 0.0
            self.waiting = max(0, unfinished - (self.parallel - 1))
        return self.waiting * (self.typical or whole) / self.parallel


def jobs_of_sweep(own: Path, steps: int) -> SweepJobs | None:
    """Returns the other jobs of the sweep that the present run belongs to; None without a sweep."""
    hydra: Any = HydraConfig.get()
    folder = next((each for each in own.parents if (each / JOBS).is_file()), None)
    if hydra.mode is not RunMode.MULTIRUN or folder is None:
        return None
    try:
        jobs = [job.folder for job in read_jobs(folder)]
    except InputError:  # a search, which chooses its jobs while it runs
        jobs = [str(number) for number in range(hydra.sweeper.get("n_trials") or 1)]
    options = OmegaConf.to_container(hydra.launcher)
    assert isinstance(options, dict)
    parallel = options.get("n_jobs") or options.get("array_parallelism") or 1
    return SweepJobs(folder, jobs, own, steps, parallel if parallel > 0 else os.cpu_count() or 1)


def in_words(seconds: float) -> str:
    """Returns a number of seconds with a unit that keeps it short."""
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 36000 else f"{seconds / 3600:.1f} h"
