"""The start of a sweep: the jobs of a new one, and what is left of one that is resumed."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from yaml import YAMLError

from rl4p.base.errors import InputError, reason_of
from rl4p.command.resume import followed_by, refuse_changes, resume
from rl4p.configuration.composition import Composer, refused_jobs, sweep_jobs
from rl4p.configuration.hydra_internals import BasicSweeper
from rl4p.configuration.schema import without_hydra
from rl4p.configuration.targets import resolved
from rl4p.configuration.yaml_file import is_own, read_yaml
from rl4p.runs.folder import JOBS, RECORD, refuse_taken, resume_command
from rl4p.runs.sweep import (
    MOST_JOBS,
    MULTIRUN,
    State,
    Sweep,
    SweepJob,
    named,
    read_jobs,
    state,
)

log = logging.getLogger(__name__)

START_KEYS = ("hydra.sweep.dir", "hydra.mode")  # they have no effect on a resumed sweep


def new_sweep(
    composer: Composer,
    base: DictConfig,
    overrides: list[Override],
    *,
    targets: bool,
    resumable: bool,
) -> tuple[DictConfig, Sweep]:
    """Checks the jobs of a new sweep, and returns the configuration of the first, and the sweep.

    Args:
      resumable: whether the jobs keep records, so that the sweep can be resumed.
    """
    params = OmegaConf.select(base, "hydra.sweeper.params") or {}
    axes = composer.parse([f"{key}={values}" for key, values in params.items()])
    for_hydra = [override for override in overrides if override.is_hydra_override()]
    axes += [override for override in overrides if not override.is_hydra_override()]
    if any(override.key_or_group == "mesh.processes" for override in overrides):
        raise InputError("Each job of a sweep runs in one process: leave mesh.processes out.")
    for axis in axes:
        if axis.is_interval_sweep() and not is_search(base):
            raise InputError(f"{axis.input_line} needs a search: add sweep=search.")
    tried = list(sweep_jobs([*axes, *for_hydra]))
    if is_search(base) and len(tried) == 1:
        raise InputError(
            "This search has no key to choose values for: give one, for example with "
            "'optimizer.learning_rate=interval(1e-5,1e-3)' and -m."
        )
    configs, errors = [], {}
    for number, job in enumerate(tried):  # before any slow import
        try:
            configs.append(composer.compose(job, targets=False))
        except InputError as error:
            errors[number] = error
    if targets and not errors:
        for number, config in enumerate(configs):
            try:
                composer.check(config)
            except InputError as error:
                errors[number] = error
    if errors:
        raise refused_jobs(axes, tried, errors) from next(iter(errors.values()))
    if targets:
        composer.loader.check_capabilities(base, "tracker")  # for the parent run of the sweep
        refuse_taken("hydra.sweep.dir", base.hydra.sweep.dir, f"*/{RECORD}")
    place = Path(base.hydra.sweep.dir).absolute()
    sweep = Sweep(
        folder=place,
        jobs=() if is_search(base) else tuple(jobs_of(composer, base, axes, for_hydra)),
        given=tuple(str(override.input_line) for override in overrides),
        left=None,
        command=command_of(place, configs[0], for_hydra)
        if resumable and not is_search(base)
        else "",
    )
    return configs[0], sweep


def is_search(config: DictConfig) -> bool:
    """Returns whether the sweeper chooses jobs by the results of earlier ones."""
    basic = f"{BasicSweeper.__module__}.{BasicSweeper.__qualname__}"
    return config.hydra.sweeper.get("_target_") != basic


def jobs_of(
    composer: Composer,
    config: DictConfig,
    overrides: Sequence[Override],
    for_hydra: Sequence[Override],
) -> list[SweepJob]:
    """Returns the jobs that Hydra's own sweeper makes of the overrides, in its order."""
    (lists,) = BasicSweeper.split_arguments(list(overrides), None)
    unresolved: Any = OmegaConf.to_container(config.hydra.sweep)
    numbered = unresolved["subdir"] == "${hydra.job.num}"
    own = [str(override.input_line) for override in for_hydra]
    folders = []
    for number, lines in enumerate(lists):
        if numbered:
            folders.append(str(number))
        else:  # the user's own name
            job = composer.load([*lines, *own])
            with read_write(job.hydra), open_dict(job.hydra):
                job.hydra.job.num = job.hydra.job.id = number
            folders.append(str(job.hydra.sweep.subdir))
    if len(set(folders)) < len(folders):
        raise InputError(
            f"hydra.sweep.subdir gives {len(folders)} jobs only {len(set(folders))} folders: leave "
            "it out to number them."
        )
    return named(zip(folders, lists, strict=True))


def resumed_sweep(
    composer: Composer, folder: Path, overrides: list[Override], *, targets: bool
) -> tuple[list[str], DictConfig, Sweep]:
    """Checks what is left of a sweep; the arguments are as in `new_sweep`.

    Returns:
      The overrides of the sweep, its configuration, and the sweep.
    """
    if not targets:
        raise InputError(
            f"--cfg and --info show a single job: give its folder, such as resume={folder / '0'}."
        )
    lines, jobs, left = resume_sweep(composer, folder, overrides)
    words = [word for job in jobs for word in job.overrides]
    own = is_own(folder / JOBS, times=MOST_JOBS)
    known = {*words, *(str(each.input_line) for each in overrides)}
    # Nobody signs the words of the sweep itself: they count if its jobs have them.
    alike = all(o.is_sweep_override() or str(o.input_line) in known for o in composer.parse(lines))
    composer.loader.recall(words if own else (), (), own=own and alike)
    config = composer.load(lines)
    for part in ("hydra", "tracker"):  # Hydra uses both before the first job
        composer.loader.check_capabilities(config, part)
    sweep = Sweep(
        folder=folder,
        jobs=tuple(jobs),
        given=(),
        left=left,
        command=command_of(folder, config, overrides),
    )
    return lines, config, sweep


def resume_sweep(
    composer: Composer, folder: Path, overrides: list[Override]
) -> tuple[list[str], list[SweepJob], dict[str, list[str]]]:
    """Returns what resumes a sweep: jobs that were stopped or killed continue, others run anew.

    Args:
      overrides: the overrides of the command line. Those of Hydra apply to the sweep (another
        launcher), the others to each job that has not finished (more steps).

    Returns:
      The overrides of the sweep, all its jobs, and the overrides of each job to run by its folder.

    Raises:
      InputError: a job is still active, or a key would change that may not.
    """
    jobs = read_jobs(folder)
    try:
        saved = read_yaml(folder / MULTIRUN)["hydra"]["overrides"]
        old = [str(line) for line in saved["task"]]
        dropped = [str(line) for line in saved["hydra"]]
    except (OSError, KeyError, TypeError, ValueError, YAMLError) as error:
        problem = f"resume={folder}: its {MULTIRUN} cannot be read"
        raise InputError(f"{problem}: {reason_of(error)}.") from error
    again = {*START_KEYS, *(override.get_key_element() for override in overrides)}
    if dropped := [line for line in dropped if line.partition("=")[0] not in again]:
        log.warning(
            "%s was started with %s, which is not taken over from a folder: give it again if you "
            "want it.",
            folder,
            " ".join(dropped),
        )
    lines = followed_by(composer, old, overrides)
    for_hydra = [override for override in composer.parse(lines) if override.is_hydra_override()]
    new = [override for override in overrides if not override.is_hydra_override()]
    steps = next((o.value() for o in reversed(new) if o.key_or_group == "steps"), None)
    left = {}
    for job in jobs:
        place = folder / job.folder
        ended = state(place, steps if isinstance(steps, int) else None)
        if ended is State.RUNNING:
            raise InputError(f"Another run is using {place}.")
        if ended is State.STOPPED:
            left[job.folder] = resume(composer, str(place), [*for_hydra, *new], targets=True)
        elif ended is not State.FINISHED:
            left[job.folder] = begin_anew(composer, place, job, [*for_hydra, *new])
    # The overrides of Hydra apply to the whole sweep.
    for name, words in left.items():
        own = [each for each in composer.parse(words) if not each.is_hydra_override()]
        left[name] = [str(each.input_line) for each in own]
    return lines, jobs, left


def command_of(folder: Path, config: DictConfig, overrides: Sequence[Override]) -> str:
    """Returns the command that resumes a sweep."""
    not_again = ("resume", "trusted_targets", *START_KEYS)
    words = [str(o.input_line) for o in overrides if o.key_or_group not in not_again]
    tree = resolved(without_hydra(config), complete=False)
    return resume_command(folder, tree, config.hydra.runtime.config_sources, words)


def begin_anew(
    composer: Composer, place: Path, job: SweepJob, overrides: list[Override]
) -> list[str]:
    """Returns the overrides of a job of a sweep that failed or has not started."""
    own = is_own(place.parent / JOBS, times=MOST_JOBS)
    composer.loader.recall(job.overrides if own else (), (), own=own)
    lines = followed_by(composer, job.overrides, overrides)
    config = composer.compose(lines)
    kept = [o for o in overrides if o.is_hydra_override() or o.key_or_group == "trusted_targets"]
    saved = composer.compose(followed_by(composer, job.overrides, kept), targets=False)
    refuse_changes(str(place), without_hydra(saved), without_hydra(config), overrides)
    return lines
