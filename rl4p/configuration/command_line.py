"""The wrapper of every entry point: it checks the configuration, calls Hydra and sets exit codes.

The check comes before Hydra creates a folder and covers every value of a sweep. An error is
reported in one sentence. The check uses Hydra's own loader and parser, so that it accepts the same
grammar and composes the same configuration.
"""

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from rl4p.configuration.completion import shell_completion
from rl4p.configuration.composition import CONFIG, Composer, one_line
from rl4p.configuration.folder import RECORD, refuse_taken
from rl4p.configuration.foreign import own_failures
from rl4p.configuration.launcher import AfterSweep, JobFailed, run_sweep
from rl4p.configuration.quoting import quoted
from rl4p.configuration.resume import resume
from rl4p.configuration.schema import check, without_hydra
from rl4p.configuration.sweep import FAILURE, MULTIRUN, Sweep
from rl4p.configuration.sweep_start import new_sweep, resumed_sweep
from rl4p.configuration.trust import CONF
from rl4p.configuration.unreadable import several_values, unknown_flags
from rl4p.errors import InputError, RunError, Stopped, ended_by_interrupt

log = logging.getLogger(__name__)

Job = Callable[[DictConfig], Any]
Join = Callable[[DictConfig], AbstractContextManager[bool]]

# Only the first process of a run creates and writes the run folder.
OTHER_PROCESS = ("hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=terminal")


def main(
    name: str,
    job: Job,
    *,
    join: Join = lambda config: nullcontext(True),
    after_sweep: AfterSweep | None = None,
    argv: Sequence[str] | None = None,
    conf: Path = CONF,
) -> None:
    """Checks the command line, then runs the job, or the jobs of a sweep, with Hydra.

    Raises SystemExit on failure: 2 the configuration or an input is wrong, 3 stopped by a signal
    and saved, 1 anything else. HYDRA_FULL_ERROR=1 shows the traceback of every error.

    Args:
      name: the name of the entry point, and of its log file.
      job: called with the composed configuration. It imports JAX itself, so that --help is fast.
      join: joins the other processes of the run; yields whether this process is the first.
      after_sweep: called with the folder of a sweep and the folders of its finished jobs. It is
        given by entry points whose sweeps can be resumed, because their jobs keep records.
      argv: the arguments; None takes those of the process.
      conf: the folder of the YAML files.
    """
    logging.raiseExceptions = False  # a full disk would print a traceback for each line of the log
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)  # for the user's own modules; a console script lacks this entry
    try:
        argv = sys.argv[1:] if argv is None else list(argv)
        launch(name, job, join, after_sweep, argv, conf)
    except JobFailed as failure:
        raise SystemExit(failure.exit_code) from failure
    except (Exception, KeyboardInterrupt) as error:
        raise SystemExit(report(error)) from error


def compose(overrides: Sequence[str] = (), *, conf: Path = CONF) -> DictConfig:
    """Returns the configuration that a job would get from these overrides, fully checked."""
    config = without_hydra(Composer(conf, words=overrides).compose(list(overrides)))
    OmegaConf.set_struct(config, True)
    return config


def launch(
    name: str,
    job: Job,
    join: Join,
    after_sweep: AfterSweep | None,
    argv: list[str],
    conf: Path,
) -> None:
    """Does the work of `main`, but raises errors instead of setting exit codes."""
    parser = get_args_parser()
    parser.error = partial(refuse_arguments, argv)
    args = parser.parse_intermixed_args(argv)
    if args.config_path or args.config_name or args.experimental_rerun:
        raise InputError(
            "--config-path, --config-name and --experimental-rerun are not supported: add your own "
            "YAML with --config-dir, and continue a run with resume=FOLDER."
        )
    if args.multirun and (args.cfg or args.info):
        raise InputError("--cfg and --info show a single job: leave -m out.")
    composer = Composer(conf, args.config_dir, args.overrides)
    hydra = Hydra(name, composer.loader)
    try:
        if args.help:
            hydra.app_help(CONFIG, parser, args)
        elif args.hydra_help:
            hydra.hydra_help(CONFIG, parser, args)
        elif args.shell_completion:
            shell_completion(name, conf, args.overrides)
        else:
            shows = args.cfg or args.info
            with ended_by_interrupt():  # the check imports what the configuration names
                lines, config, sweep = preflight(
                    composer,
                    args.overrides,
                    args.multirun,
                    targets=not shows,
                    resumable=after_sweep is not None,
                )
            if args.cfg:
                hydra.show_cfg(CONFIG, lines, args.cfg, args.package, args.resolve)
            elif args.info:
                hydra.show_info(args.info, CONFIG, lines)
            elif sweep is not None:
                lines += [f"hydra.mode={RunMode.MULTIRUN.name}"]
                lines += [
                    quoted("hydra.sweep.dir", str(sweep.folder))
                ]  # its name may hold the time
                run_sweep(hydra, job, lines, sweep, report, after_sweep)
            else:
                with join(config) as first:
                    lines += () if first else OTHER_PROCESS
                    hydra.run(CONFIG, reporting(job), [*lines, f"hydra.mode={RunMode.RUN.name}"])
    except HydraException as error:
        raise InputError(one_line(error)) from error
    except RecursionError as error:  # never from a job either
        raise InputError("The configuration is nested too deep.") from error
    except BrokenPipeError:  # the reader closed the pipe, as in `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:  # never from a job, whose errors `reporting` handles
        raise InputError(f"The run folder cannot be created: {error}.") from error


def refuse_arguments(argv: list[str], message: str) -> NoReturn:
    """Raises an `InputError` in place of argparse's usage message, which describes Hydra."""
    _, _, refused = message.partition("unrecognized arguments: ")
    flags = [word for word in argv if word.startswith("-") and f" {word} " in f" {refused} "]
    if error := unknown_flags(flags, argv):
        raise error
    raise InputError(f"{message[:1].upper()}{message[1:]}; see --help.")


def preflight(
    composer: Composer, lines: list[str], multirun: bool, *, targets: bool, resumable: bool
) -> tuple[list[str], DictConfig, Sweep | None]:
    """Checks every job of a command line before Hydra starts any.

    Returns:
      The overrides for Hydra, the configuration of the (first) job, and the sweep, if it is one.
    """
    overrides = composer.parse(lines)
    folder = next((o for o in reversed(overrides) if o.key_or_group == "resume"), None)
    swept = [override for override in overrides if override.is_sweep_override()]
    if folder is not None and folder.value() is not None:
        if multirun or swept:
            raise InputError(
                "resume continues a single run or a whole sweep: give one folder, leave -m out, "
                "and give no key several values."
            )
        given = Path(str(folder.value())).expanduser().resolve()
        if resumable and (given / MULTIRUN).exists():
            return resumed_sweep(composer, given, overrides, targets=targets)
        lines = resume(composer, str(folder.value()), overrides, targets=targets)
        return lines, composer.load(lines), None
    for override in swept:
        if override.is_hydra_override():
            raise InputError(
                f"{override.input_line} has several values, but a hydra key takes only one."
            )
    base = composer.load(lines)
    if base.get("resume") is not None:
        raise InputError("Set resume only on the command line: resume=FOLDER.")
    if multirun or base.hydra.mode == RunMode.MULTIRUN:
        return lines, *new_sweep(composer, base, overrides, targets=targets, resumable=resumable)
    if swept:
        raise several_values(swept[0])
    config = composer.compose(lines, targets=False)  # before any slow import
    if targets:
        refuse_taken("hydra.run.dir", base.hydra.run.dir, RECORD)
        check(config)
    return lines, config, None


def reporting(job: Job) -> Job:
    """Wraps a job so that its errors are printed at once and written to the log of its folder."""

    def reporting_job(config: DictConfig) -> Any:
        if config.resume is not None:
            (Path(config.resume) / FAILURE).unlink(missing_ok=True)  # of a job of a sweep
        try:
            with own_failures(config):
                return job(config)
        except (Exception, KeyboardInterrupt) as error:
            log.info("The job ended with an error.", exc_info=error)  # INFO goes to the file only
            exit_code = report(error)
            raise SystemExit(exit_code) from error

    return reporting_job


def report(error: BaseException) -> int:
    """Prints an error and returns its exit code. Errors of rl4p are printed without a traceback."""
    if isinstance(error, KeyboardInterrupt):
        print("Interrupted: the work since the last save is lost.", file=sys.stderr)
        return 1
    if not isinstance(error, (InputError, RunError, Stopped)):
        traceback.print_exception(error)
        return 1
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        traceback.print_exception(error)
    else:
        print(error, file=sys.stderr)
    return error.exit_code
