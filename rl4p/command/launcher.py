"""Runs the jobs of a sweep with Hydra's launchers, so that each job ends for itself.

An exception of one job would reach the sweeper or the launcher, which would drop the results of
the others or start no more of them. So a job of a sweep records its error in its folder instead.
The error of a class of the user names the line in the file of the user.
"""

import linecache
import logging
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf

from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.base.terminal import make_logs_visible, write
from rl4p.configuration.composition import CONFIG
from rl4p.configuration.hydra_internals import Callbacks, Hydra, replace_save_config
from rl4p.configuration.quoting import quoted
from rl4p.configuration.targets import TRUSTED, join
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


LONGEST = 300  # characters of the message of an exception

Frames = Iterable[tuple[FrameType, int]]  # each with the number of its line, the outermost first


class Place(NamedTuple):
    """The place of a failure in the code of a user."""

    part: str  # the key and the target of the class
    line: str  # the innermost line of the stack in the file of the class


@contextmanager
def own_failures(config: DictConfig) -> Iterator[None]:
    """Turns the failures of the user's code into errors of one sentence.

    An exception and `sys.exit` become the cause of a `RunError`, which names the part and the last
    line in its file. `os._exit` still ends the process, but prints such a sentence and uses exit
    code 1, because the job has not finished.
    """
    parts = keys_by_target(OmegaConf.to_container(config))
    leave, process = os._exit, os.getpid()

    def leave_with_sentence(status: int) -> NoReturn:
        caller = sys._getframe(1)
        ours = str(caller.f_globals.get("__name__", "")).startswith("rl4p.")
        if os.getpid() == process and not ours:  # a child of a fork may end in this way
            place = place_of(list(traceback.walk_stack(caller))[::-1], parts)
            write(exit_sentence(f"os._exit({status})", place), sys.stderr)
            status = RunError.exit_code
        leave(status)

    os._exit = leave_with_sentence
    try:
        yield
    except (InputError, RunError, Stopped, KeyboardInterrupt):
        raise
    except (SystemExit, Exception) as error:
        place = place_of(traceback.walk_tb(error.__traceback__), parts)
        if isinstance(error, SystemExit):
            sentence = exit_sentence(f"sys.exit({error.code!r})", place)
        elif place is None:
            raise
        else:
            sentence = f"{place.part} raised {raised(error)} ({place.line})."
        handlers = logging.getLogger().handlers
        if files := [x.baseFilename for x in handlers if isinstance(x, logging.FileHandler)]:
            sentence += f" The traceback is in {files[-1]}."
        raise RunError(sentence) from error
    finally:
        os._exit = leave


def keys_by_target(tree: Any, key: str = "") -> dict[str, str]:
    """Returns the key of each target that belongs to no package that is always trusted."""
    keys: dict[str, str] = {}
    children = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    for name, child in children:
        if name == "_target_" and str(child).partition(".")[0] not in TRUSTED:
            keys[str(child)] = f"{keys[child]} or {key}" if child in keys else key
        elif isinstance(child, (Mapping, list)):
            for target, other in keys_by_target(child, join(key, name)).items():
                keys[target] = f"{keys[target]} or {other}" if target in keys else other
    return keys


def place_of(stack: Frames, parts: Mapping[str, str]) -> Place | None:
    """Returns the innermost line of a stack that is code of a configured class; None without one.

    Args:
      parts: the keys of the configuration that choose classes, by the name of the class.
    """
    target, own_file, place = "", "", ""
    for frame, number in stack:
        code, owner = frame.f_code, None
        file, module = code.co_filename, str(frame.f_globals.get("__name__", ""))
        if code.co_argcount and module.partition(".")[0] not in TRUSTED:  # a method of a part?
            kinds = type(frame.f_locals.get(code.co_varnames[0])).__mro__
            names = [f"{kind.__module__}.{kind.__qualname__}" for kind in kinds]
            owner = next((name for name in names if name in parts), None)
        if owner is None and file != own_file:  # a function of the file is called by its class
            owner = next((name for name in parts if name.rpartition(".")[0] == module), None)
            if owner is None:
                continue
        target, own_file = owner or target, file
        line = linecache.getline(file, number).strip()
        place = f"{file}, line {number}" + f": {line}" * bool(line)
    return Place(f"{parts[target]} ({target})", place) if target else None


def raised(error: Exception) -> str:
    """Returns the type of an exception and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0][:LONGEST]}".removesuffix(": ")
    if type(error).__module__.startswith("jax.") and "Tracer" in type(error).__name__:
        text += "; it is traced by JAX: use jax.numpy, and no `if` on values of arrays"
    return text


def exit_sentence(call: str, place: Place | None) -> str:
    """Returns the error message for a call that would have ended the process."""
    who = f"{place.part} called {call} ({place.line})" if place else f"The job called {call}"
    return f"{who}, so it did not finish: raise an exception instead of this call."
