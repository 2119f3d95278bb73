"""A sweep in its folder: its jobs, their states, and the report at its end.

    multirun.yaml   the configuration of the sweep, which Hydra writes
    jobs.yaml       the folder and the overrides of every job, written before the first one starts
    0/ 1/ ...       the jobs; a job that failed has a failure.json
    failed/         failed jobs that were run anew

A job may run in another process or on another host, which may be killed, so that only the files
tell how it ended.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig

from rl4p.base.errors import InputError
from rl4p.base.terminal import write
from rl4p.configuration.yaml_file import read_yaml, signed
from rl4p.runs.folder import JOBS, RECORD, is_in_use, replace

MULTIRUN = "multirun.yaml"
FAILURE = "failure.json"
SUMMARY = "summary.json"
RUN_ANEW = "failed"
MOST_JOBS = 16  # times the limits of a YAML file: some 20,000 jobs
LISTED = 20  # unfinished jobs that the report lists


class State(Enum):
    """How far a job has come."""

    FINISHED = "finished"
    FAILED = "failed"
    RUNNING = "still running"
    STOPPED = "stopped or killed"
    WAITING = "not started"


@dataclass(frozen=True, kw_only=True)
class SweepJob:
    """A job of a sweep."""

    folder: str  # its folder inside the folder of the sweep
    overrides: tuple[str, ...]  # its overrides, without the overrides of Hydra
    own: str  # the overrides that not all jobs share


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A new or a resumed sweep."""

    folder: Path
    # All its jobs; empty for a search, which chooses its jobs while it runs.
    jobs: tuple[SweepJob, ...]
    given: tuple[str, ...]  # the overrides of the command line
    # The overrides of the jobs to run by their folders, if the sweep is resumed; None runs all jobs
    left: Mapping[str, Sequence[str]] | None
    command: str  # the command that resumes the sweep; empty if it cannot be resumed

    def introduction(self) -> str:
        """Returns the line that introduces the sweep: how many jobs it runs, and where."""
        if not self.jobs:
            return f"a search in {self.folder}"
        left = f", {len(self.left)} left to run" if self.left is not None else ""
        return f"{len(self.jobs)} jobs{left} in {self.folder}"

    def heading(self, folder: Path) -> str:
        """Returns the line that introduces the job in `folder`: its number and its overrides."""
        for number, job in enumerate(self.jobs, start=1):
            if self.folder / job.folder == folder:
                return f"job {number} of {len(self.jobs)}: {job.own}"
        chosen = set(HydraConfig.get().overrides.task) - set(self.given)  # by a search
        number = int(folder.name) + 1 if folder.name.isdecimal() else folder.name
        return f"job {number}: {' '.join(sorted(chosen))}"


def named(jobs: Any) -> list[SweepJob]:
    """Returns jobs from pairs of a folder and overrides, which have the same keys in each job."""
    pairs = [(str(folder), tuple(str(line) for line in lines)) for folder, lines in jobs]
    shared = set.intersection(*(set(lines) for _, lines in pairs)) if len(pairs) > 1 else set()
    return [
        SweepJob(
            folder=folder,
            overrides=lines,
            own=" ".join(line for line in lines if line not in shared),
        )
        for folder, lines in pairs
    ]


def write_jobs(folder: Path, jobs: Sequence[SweepJob]) -> None:
    """Writes jobs.yaml atomically."""
    tree = [{"folder": job.folder, "overrides": list(job.overrides)} for job in jobs]
    text = yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
    replace(folder / JOBS, signed(JOBS, text))


def read_jobs(folder: Path) -> list[SweepJob]:
    """Returns the jobs in jobs.yaml."""
    try:
        saved = read_yaml(folder / JOBS, times=MOST_JOBS)
        jobs = named([(job["folder"], job["overrides"]) for job in saved])
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError) as error:
        raise InputError(
            f"resume={folder} cannot continue this sweep: its {JOBS} is absent or broken. Continue "
            f"its jobs one by one, for example with resume={folder / '0'}."
        ) from error
    for job in jobs:
        if folder.resolve() not in (folder / job.folder).resolve().parents:  # links are followed
            raise InputError(
                f"resume={folder}: its {JOBS} names {job.folder}, which leads out of it."
            )
    if not jobs:
        raise InputError(
            f"resume={folder} cannot continue the jobs of a search, which chooses them by their "
            "results: start it again, with hydra.sweeper.storage if it should remember them."
        )
    return jobs


def state(folder: Path, steps: int | None = None) -> State:
    """Returns the state of the job in a folder.

    Args:
      steps: the steps that it should have; None reads them from its configuration.
    """
    if is_in_use(folder):
        return State.RUNNING
    summary = document(folder / SUMMARY)
    status = summary.get("status")
    if steps is None and status == "finished":  # it may have been killed while it was extended
        try:
            saved = read_yaml(folder / ".hydra" / "config.yaml")
            steps = int(saved["steps"])
        except (InputError, OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
            steps = 0
    if status == "finished" and summary.get("step", 0) >= (steps or 0):
        return State.FINISHED
    # A later start that was refused leaves the summary as it was.
    if (folder / FAILURE).exists() and status not in ("finished", "stopped"):
        return State.FAILED
    return State.STOPPED if (folder / RECORD).exists() else State.WAITING


def set_aside(folder: Path, job: str) -> None:
    """Moves the folder of a failed job, with all that it holds, so that the job can run anew."""
    number, place = 1, folder / RUN_ANEW / job
    while place.exists():
        number += 1
        place = folder / RUN_ANEW / f"{job}-{number}"
    place.parent.mkdir(parents=True, exist_ok=True)
    (folder / job).rename(place)


def write_failure(folder: Path, sentence: str, exit_code: int) -> None:
    """Records why a job failed."""
    failure = {"error": sentence, "exit_code": exit_code}
    replace(folder / FAILURE, json.dumps(failure, ensure_ascii=False, indent=2) + "\n")


def failure(folder: Path) -> tuple[str, int]:
    """Returns why a job failed, and its exit code."""
    recorded = document(folder / FAILURE)
    return str(recorded.get("error", "unknown")), int(recorded.get("exit_code", 1))


def document(path: Path) -> dict[str, Any]:
    """Returns a JSON object from a file; {} if the file is absent or broken."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def ended_jobs(sweep: Sweep) -> list[SweepJob]:
    """Returns the jobs of the sweep; the jobs of a search are the ones that have a folder."""
    if sweep.jobs:
        return list(sweep.jobs)
    starts = {path.parents[1].name: path for path in sweep.folder.glob("*/.hydra/overrides.yaml")}
    names = sorted(starts, key=lambda name: (int(name) if name.isdecimal() else 0, name))
    return named([(name, read_yaml(starts[name])) for name in names])


def print_report(sweep: Sweep, states: Mapping[SweepJob, State]) -> None:
    """Prints how many jobs ended in which way, what failed and why, and how to run what is left."""
    counts = {each: list(states.values()).count(each) for each in State}
    ended = ", ".join(f"{count} {each.value}" for each, count in counts.items() if count)
    lines = [f"{sweep.folder}: {len(states)} job{'s'[: len(states) != 1]}, {ended}"]
    unfinished = [each for each in states if states[each] is not State.FINISHED]
    for job in unfinished[:LISTED]:
        lines.append(f"  {states[job].value}: {job.own or 'job ' + job.folder}")
        if states[job] is State.FAILED:
            lines.append(f"    {failure(sweep.folder / job.folder)[0]}")
        if states[job] is not State.WAITING:
            lines.append(f"    {sweep.folder / job.folder}")
    if len(unfinished) > LISTED:
        lines.append(f"  and {len(unfinished) - LISTED} others")
    if unfinished and sweep.command:
        lines.append(f"Run what is left with: {sweep.command}")
    write("\n".join(lines))
