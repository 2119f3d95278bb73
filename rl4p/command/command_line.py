"""The wrapper of every entry point: it checks the configuration, calls Hydra and sets exit codes.

The check comes before Hydra creates a folder and covers every value of a sweep. An error is
reported in one sentence. The check uses Hydra's own loader and parser, so that it accepts the same
grammar and composes the same configuration.
"""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from rl4p import configuration
from rl4p.base.errors import AlreadyFinished, InputError, importing, reason_of, report
from rl4p.base.terminal import VisibleStream, write
from rl4p.command.commands import PLAN, options_of, prepare_process
from rl4p.command.completion import shell_completion
from rl4p.command.launcher import AfterSweep, JobFailed, own_failures, run_sweep
from rl4p.command.resume import as_started, config_of_run, followed_by, resume, with_local_folder
from rl4p.command.sweep import new_sweep, resumed_sweep
from rl4p.configuration.capability import refuse_secrets
from rl4p.configuration.composition import CONFIG, Composer, one_line
from rl4p.configuration.hydra_internals import Hydra, get_args_parser
from rl4p.configuration.override_errors import refuse_arguments, several_values
from rl4p.configuration.quoting import override, quoted
from rl4p.configuration.schema import without_hydra
from rl4p.configuration.trust import CONF
from rl4p.runs.folder import AUTO, RECORD, refuse_hydra_of_others, refuse_taken
from rl4p.runs.sweep import FAILURE, MULTIRUN, Sweep

log = logging.getLogger(__name__)

Job = Callable[[DictConfig], Any]
Join = Callable[[DictConfig], AbstractContextManager[bool]]

EXPERIMENTAL = "# Experimental:"  # begins a comment line at the head of a YAML file

# Flags of Hydra that `launch` refuses, so that the completion does not offer them.
REFUSED_FLAGS = {"--config-path", "--config-name", "--experimental-rerun"}
# Only the first process of a run creates and writes the run folder.
OTHER_PROCESS = ("hydra.run.dir=.", "hydra.output_subdir=null", "hydra/job_logging=terminal")


def main(
    name: str,
    job: Job,
    *,
    join: Join = lambda config: nullcontext(True),
    after_sweep: AfterSweep | None = None,
    reads_runs: bool = False,
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
      reads_runs: whether the entry point reads a run (run=FOLDER, out=FOLDER); otherwise it
        continues one (resume=FOLDER).
    """
    prepare_process()
    logging.raiseExceptions = False  # a full disk would print a traceback for each line of the log
    try:
        argv = sys.argv[1:] if argv is None else list(argv)
        launch(name, job, join, after_sweep, argv, conf, reads_runs=reads_runs)
    except JobFailed as failure:
        raise SystemExit(failure.exit_code) from failure
    except (Exception, KeyboardInterrupt) as error:
        raise SystemExit(report(error)) from error


def compose(
    overrides: Sequence[str] = (),
    *,
    run: str | None = None,
    parts: Sequence[str] = (),
    config_dir: str | None = None,
    conf: Path = CONF,
) -> DictConfig:
    """Returns the configuration that a job would get from these overrides, fully checked.

    Args:
      run: the folder of a run whose configuration is taken for the `parts`.
      parts: the keys of the root that the job reads from the run (`config_of_run`).
    """
    if run is None:
        return configuration.compose(overrides, config_dir=config_dir, conf=conf)
    composer = Composer(conf, config_dir, overrides)
    config = config_of_run(composer, run, composer.parse(list(overrides)), parts)
    composer.check(config)
    config = without_hydra(config)
    OmegaConf.set_struct(config, True)
    return config


def call(
    name: str,
    job: Job,
    overrides: Sequence[str],
    join: Join,
    config_dir: str | None = None,
) -> Path:
    """Runs a job in this process as `main` does, and returns the folder of the run.

    Args:
      join: as in `main`.

    Raises:
      InputError: the configuration is wrong, or of a sweep.
      Exception: an error of the job.
    """
    folders: list[str] = []
    errors: list[BaseException] = []

    def kept(config: DictConfig) -> None:
        try:
            with own_failures(config):
                folders.append(HydraConfig.get().runtime.output_dir)
                job(config)
        except (Exception, KeyboardInterrupt) as error:
            log.info("The job ended with an error.", exc_info=error)
            errors.append(error)

    with errors_of_hydra():
        overrides = with_local_folder(overrides)
        composer = Composer(CONF, config_dir, overrides)
        hydra = Hydra(name, composer.loader)  # also registers ${now:...}, which folders have
        try:
            lines, config, sweep = preflight(
                composer, overrides, False, run=None, targets=True, resumable=False
            )
        except AlreadyFinished as error:
            write(error)
            return error.folder
        if sweep is not None:
            raise InputError("hydra.mode=MULTIRUN is a sweep: start it with python -m, and -m.")
        with join(config) as first:
            lines += () if first else OTHER_PROCESS
            lines += [f"hydra.mode={RunMode.RUN.name}"]
            hydra.run(CONFIG, kept, lines)
    for error in errors:
        raise error
    return Path(folders[0])


@contextmanager
def errors_of_hydra() -> Iterator[None]:
    """Turns the errors of Hydra and of the run folder into errors of one sentence."""
    try:
        yield
    except HydraException as error:
        raise InputError(one_line(error)) from error
    except RecursionError as error:
        raise InputError("The configuration is nested too deep.") from error
    except BrokenPipeError:
        raise
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise InputError(f"The run folder cannot be created: {reason_of(error)}{where}.") from error


@errors_of_hydra()
def launch(
    name: str,
    job: Job,
    join: Join,
    after_sweep: AfterSweep | None,
    argv: list[str],
    conf: Path,
    *,
    reads_runs: bool = False,
) -> None:
    """Does the work of `main`, but raises errors instead of setting exit codes."""
    refuse_secrets(argv)
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
    run = None
    if reads_runs and not args.shell_completion:
        options, args.overrides = options_of(args.overrides, replace(PLAN, name=name))
        run = options.run
        args.overrides += ["plan.estimate=true"] if options.estimate else []
        if options.out is not None:
            refuse_hydra_of_others(options.out)
            folder = "hydra.sweep.dir" if args.multirun else "hydra.run.dir"
            args.overrides.append(override(folder, options.out))
    elif not (args.help or args.hydra_help or args.shell_completion):
        args.overrides = with_local_folder(args.overrides)
    composer = Composer(conf, args.config_dir, args.overrides)
    hydra = Hydra(name, composer.loader)
    try:
        if args.help or args.hydra_help or args.shell_completion:
            with importing(), redirect_stdout(VisibleStream(sys.stdout)):
                if args.shell_completion:
                    known = parser._option_string_actions.keys() - REFUSED_FLAGS
                    flags = sorted(flag for flag in known if flag.startswith("--"))
                    own = PLAN.words() if reads_runs else []
                    shell_completion(name, args.overrides, conf=conf, own=own, flags=flags)
                else:
                    listed = hydra.format_config_groups
                    width = get_terminal_size().columns if sys.stdout.isatty() else None
                    hydra.format_config_groups = lambda predicate, compact=True: marked(
                        listed(predicate, compact), conf, width
                    )
                    help_of = hydra.app_help if args.help else hydra.hydra_help
                    help_of(CONFIG, parser, args)
        else:
            shows = args.cfg or args.info
            with importing():  # the check imports what the configuration names
                lines, config, sweep = preflight(
                    composer,
                    args.overrides,
                    args.multirun,
                    run=run,
                    targets=not shows,
                    resumable=after_sweep is not None,
                )
            if shows:
                with importing(), redirect_stdout(VisibleStream(sys.stdout)):
                    if args.cfg:
                        hydra.compose_config = lambda *_, **__: config  # `preflight` composed it
                        hydra.show_cfg(CONFIG, lines, args.cfg, args.package, args.resolve)
                    else:
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
    except BrokenPipeError:  # the reader closed the pipe, as in `--help | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def marked(groups: str, conf: Path, width: int | None = None) -> str:
    """Returns the lines `GROUP: OPTION, OPTION` of the help with a * after experimental options.

    Args:
      width: the columns of the terminal; None for lines of any length, which programs read.
    """
    lines = []
    for line in groups.splitlines():
        group, _, options = line.partition(": ")
        names = options.split(", ")
        for index, name in enumerate(names):
            path = conf / group / f"{name}.yaml"
            head = path.read_text("utf-8") if path.is_file() else ""
            head = takewhile(lambda text: text.startswith("#"), head.splitlines())
            names[index] += "*" * any(text.startswith(EXPERIMENTAL) for text in head)
        line = f"{group}: {', '.join(names)}"
        lines.append(fill(line, width, subsequent_indent="  ") if width else line)
    return "\n".join([*lines, ""])


def with_resume(
    composer: Composer, lines: list[str], overrides: list[Override]
) -> tuple[list[str], list[Override]]:
    """Replaces `resume=auto` by the folder in `hydra.run.dir`, or by nothing if it has no run."""
    given = {each.key_or_group: each.value() for each in overrides}
    if given.get("resume") != AUTO:
        return lines, overrides
    folder = given.get("hydra.run.dir")
    if not isinstance(folder, str):
        raise InputError(
            "resume=auto needs the folder of the run: add hydra.run.dir=FOLDER, the same for each "
            "start."
        )
    starts = not (Path(folder).expanduser() / RECORD).is_file()
    removed = ("resume",) if starts else ("resume", "hydra.run.dir")
    lines = [str(o.input_line) for o in overrides if o.key_or_group not in removed]
    lines += [] if starts else [override("resume", folder)]
    return lines, composer.parse(lines)


def preflight(
    composer: Composer,
    lines: list[str],
    multirun: bool,
    *,
    run: str | None,
    targets: bool,
    resumable: bool,
) -> tuple[list[str], DictConfig, Sweep | None]:
    """Checks every job of a command line before Hydra starts any.

    Args:
      run: the folder of a run whose overrides come first, if there is one.
      resumable: whether a sweep can be resumed.

    Returns:
      The overrides for Hydra, the configuration of the (first) job, and the sweep, if it is one.
    """
    overrides = composer.parse(lines)
    if run is not None:
        lines = followed_by(composer, as_started(composer, "run", run)[0], overrides)
        overrides = composer.parse(lines)
    lines, overrides = with_resume(composer, lines, overrides)
    folder = next((o for o in reversed(overrides) if o.key_or_group == "resume"), None)
    swept = [each for each in overrides if each.is_sweep_override()]
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
    for each in swept:
        if each.is_hydra_override():
            raise InputError(
                f"{each.input_line} has several values, but a hydra key takes only one."
            )
    base = composer.load(lines)
    composer.loader.check_capabilities(base, "hydra")
    if base.get("resume") is not None:
        raise InputError("Set resume only on the command line: resume=FOLDER.")
    if OmegaConf.select(base, "checkpoint.restore", default="newest") != "newest":
        raise InputError(
            "checkpoint.restore chooses the checkpoint of a run that is resumed: add resume=FOLDER."
        )
    if multirun or base.hydra.mode == RunMode.MULTIRUN:
        return lines, *new_sweep(composer, base, overrides, targets=targets, resumable=resumable)
    if swept:
        raise several_values(swept[0])
    composer.check(base, targets=False)  # before any slow import
    if targets:
        refuse_taken("hydra.run.dir", base.hydra.run.dir, RECORD)
        composer.check(base)
    return lines, base, None


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
