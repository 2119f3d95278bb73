"""Runs the jobs of a sweep with Hydra's launchers, so that each job ends for itself.

An exception of one job would reach the sweeper or the launcher, which would drop the results of
the others or start no more of them. So a job of a sweep records its error in its folder instead.
"""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig

from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.base.terminal import make_logs_visible, write
from rl4p.command.user_code import own_failures
from rl4p.configuration.composition import CONFIG
from rl4p.configuration.hydra_internals import Callbacks, Hydra, replace_save_config
from rl4p.configuration.quoting import quoted
from rl4p.runs.folder import only_run_in, save_config
from rl4p.runs.sweep import (
    FAILURE,
    SUMMARY,
    State,
    Sweep,
    SweepJob,
    document,
    ended_jobs,
    failure,
    print_report,
    set_aside,
    state,
    write_failure,
    write_jobs,
)

log = logging.getLogger(__name__)

# Hydra's own function leaves half a file if it is killed. Replaced at import, because launchers run
# jobs in other processes, which import this module.
replace_save_config(save_config)

Job = Callable[[DictConfig], Any]
Report = Callable[[BaseException], int]
# Called with the folder of a sweep and the folders of its finished jobs.
AfterSweep = Callable[[Path, Sequence[Path]], None]

# Libraries whose errors say that the process of a job ended without a result.
LAUNCHERS = ("joblib", "loky", "submitit")


class JobFailed(Exception):
    """A failure of jobs of a sweep, which has already been reported."""

    def __init__(self, exit_code: int):
        super().__init__(exit_code)
        self.exit_code = exit_code


def run_sweep(
    hydra: Hydra,
    job: Job,
    lines: list[str],
    sweep: Sweep,
    report: Report,
    after: AfterSweep | None,
) -> None:
    """Runs the jobs of a sweep that have not finished, and reports how each of them ended.

    Args:
      hydra: composes the configurations.
      job: runs one job.
      lines: the overrides of the sweep.
      sweep: the sweep.
      report: prints an error and returns its exit code.
      after: called after the last job, unless a signal stopped the sweep. Its presence says that
        jobs keep records (summary.json), which tell whether they have finished.

    Raises:
      JobFailed: a job failed or did not finish.
      SystemExit: a signal stopped the sweep.
    """
    sweep.folder.mkdir(parents=True, exist_ok=True)
    with only_run_in(sweep.folder):
        exit_code = 0
        write(sweep.introduction())
        try:
            if sweep.left is None:
                write_jobs(sweep.folder, sweep.jobs)
                hydra.multirun(CONFIG, job_of_sweep(job, sweep, report), lines)
            elif sweep.left:
                run_left(hydra, job_of_sweep(job, sweep, report), lines, sweep)
        except (HydraException, OSError):  # before the first job
            raise
        except (SystemExit, KeyboardInterrupt):
            print_report(sweep, states_of(sweep, records=after is not None))
            raise
        except Exception as error:  # noqa: BLE001 - jobs may have ended, and are reported
            exit_code = report_launcher(error, report)
        states = states_of(sweep, records=after is not None)
        if after is not None:
            finished = [each for each in states if states[each] is State.FINISHED]
            after(sweep.folder, [sweep.folder / each.folder for each in finished])
        print_report(sweep, states)
    if exit_code := exit_code or exit_code_of(sweep, states):
        raise JobFailed(exit_code)


def run_left(hydra: Hydra, job: Job, lines: list[str], sweep: Sweep) -> None:
    """Launches the jobs that are left of a sweep, each in its own folder.

    Hydra's sweepers can only start a sweep from its first job, so this calls the launcher itself.
    """
    assert sweep.left is not None
    for name in sweep.left:
        if state(sweep.folder / name) is State.FAILED:
            set_aside(sweep.folder, name)
    config = hydra.compose_config(CONFIG, lines, run_mode=RunMode.MULTIRUN)
    callbacks = Callbacks(config)
    callbacks.on_multirun_start(config=config, config_name=CONFIG)
    context = HydraContext(config_loader=hydra.config_loader, callbacks=callbacks)
    launcher = Plugins.instance().instantiate_launcher(context, job, config)
    launcher.launch(
        [[*left, quoted("hydra.sweep.subdir", name)] for name, left in sweep.left.items()],
        initial_job_idx=0,
    )
    callbacks.on_multirun_end(config=config, config_name=CONFIG)


def job_of_sweep(job: Job, sweep: Sweep, report: Report) -> Job:
    """Wraps a job so that it introduces itself, and records its error instead of raising it.

    A job that a signal stopped ends the sweep, if it runs in the sweep's own process. A failed job
    of a search raises `JobFailed`, because a search must know which values failed.
    """
    own_process, is_search = os.getpid(), not sweep.jobs

    def reporting_job(config: DictConfig) -> Any:
        make_logs_visible()  # a launcher may have started this process
        folder = Path(HydraConfig.get().runtime.output_dir)
        (folder / FAILURE).unlink(missing_ok=True)
        write(sweep.heading(folder))
        try:
            with own_failures(config):
                return job(config)
        except (Exception, KeyboardInterrupt) as error:
            log.info("The job ended with an error.", exc_info=error)  # INFO goes to the file only
            exit_code = report(error)
            if not isinstance(error, (Stopped, KeyboardInterrupt)):
                with suppress(OSError):  # the disk may be full
                    write_failure(folder, one_sentence(error), exit_code)
            elif os.getpid() == own_process:
                raise SystemExit(exit_code) from error
            if is_search:
                raise JobFailed(exit_code) from error
            return None

    return reporting_job


def one_sentence(error: BaseException) -> str:
    """Returns the message of an error in one line, with its type if it is not one of rl4p."""
    text = " ".join(str(error).split())
    if isinstance(error, (InputError, RunError)):
        return text
    return f"{type(error).__name__}: {text}"[:300].removesuffix(": ")


def report_launcher(error: Exception, report: Report) -> int:
    """Reports an error that ended the sweep itself, and returns its exit code."""
    if isinstance(error, JobFailed):
        return error.exit_code
    if type(error).__module__.partition(".")[0] in LAUNCHERS:
        sentence = " ".join(str(error).split())[:300]
        return report(RunError(f"The process of a job was killed or ended early: {sentence}"))
    return report(error)


def states_of(sweep: Sweep, *, records: bool) -> Mapping[SweepJob, State]:
    """Returns the states of all jobs; without records all that did not fail have finished."""
    states = {each: state(sweep.folder / each.folder) for each in ended_jobs(sweep)}
    if not records:
        return {
            job: ended if ended is State.FAILED else State.FINISHED for job, ended in states.items()
        }
    return states


def exit_code_of(sweep: Sweep, states: Mapping[SweepJob, State]) -> int:
    """Returns the exit code of the first failed job; 3 if signals stopped the unfinished jobs."""
    unfinished = []
    for each, ended in states.items():
        if ended is State.FAILED:
            return failure(sweep.folder / each.folder)[1]
        if ended is not State.FINISHED:
            unfinished.append(document(sweep.folder / each.folder / SUMMARY).get("status"))
    return (3 if set(unfinished) == {"stopped"} else 1) if unfinished else 0
