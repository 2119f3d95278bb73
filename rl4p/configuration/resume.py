"""Resuming or reading a run in its folder: its original overrides, followed by the new ones."""

from collections.abc import Iterator, Mapping, Sequence
from fcntl import LOCK_SH
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf
from yaml import YAMLError

from rl4p.configuration.composition import CONF, Composer
from rl4p.configuration.folder import not_a_run, only_run_in, run_folder
from rl4p.configuration.moved import renewed, renewed_override
from rl4p.configuration.quoting import quoted
from rl4p.configuration.schema import without_hydra
from rl4p.configuration.targets import join, resolved
from rl4p.errors import InputError

MAY_CHANGE = (
    "steps",
    "evaluation.every",
    "samples",
    "tracker",
    "checkpoint",
    "debug",
    "plan",
    "mesh",  # changes the results by rounding only
    "trusted_targets",
    "resume",
)
# These keys describe the current start, not the run.
PROCESSES = ("mesh.coordinator", "mesh.processes", "mesh.process")
# A run folder may come from anyone, so trust must be given again on the command line.
NOT_TAKEN_OVER = ("trusted_targets", "resume", *PROCESSES)


def resume(
    composer: Composer, given: str, overrides: list[Override], *, targets: bool
) -> list[str]:
    """Returns the overrides that resume a run. Hydra saves them in the folder for the next resume.

    Args:
      composer: composes and checks the configuration.
      given: the folder of a run or of one job of a sweep, or `latest`.
      overrides: the overrides of the command line.
      targets: as in `schema.check`.

    Raises:
      InputError: the folder is not that of a run, or a key would change that may not.
    """
    folder = run_folder(given)
    lines, saved = as_started("resume", given)
    lines = followed_by(composer, lines, overrides)
    lines += [quoted("resume", str(folder)), quoted("hydra.run.dir", str(folder))]
    refuse_changes(given, saved, without_hydra(composer.compose(lines, targets=targets)))
    if targets:
        with only_run_in(folder, lock=LOCK_SH):
            pass  # refuses a folder whose run is still active, before Hydra writes
    return lines


def refuse_changes(given: str, saved: DictConfig, config: DictConfig) -> None:
    """Refuses a configuration in which a key would change that may not.

    Args:
      given: the folder, as it was given.
      saved: the configuration of the earlier start; its keys that may change are changed.
      config: the configuration of this start.
    """
    for key in MAY_CHANGE:  # before resolving: values interpolated from `steps` change with it
        new = OmegaConf.select(config, key)
        OmegaConf.update(saved, key, new, merge=False, force_add=True)
    before, after = dict(leaves(resolved(saved))), dict(leaves(resolved(config)))
    changes = [
        f"{key} was {before.get(key, 'absent')} and would be {after.get(key, 'absent')}"
        for key in dict.fromkeys([*before, *after])
        if key not in before or key not in after or before[key] != after[key]
    ]
    if changes:
        raise InputError(
            f"resume={given} cannot change the configuration: {', '.join(changes)} "
            f"(only {', '.join(MAY_CHANGE[:-2])} may change)."
        )


def as_started(key: str, given: str) -> tuple[list[str], DictConfig]:
    """Returns the overrides and the configuration in a run folder, with current names.

    Args:
      key: the key of the command line that names the folder, for error messages.

    Raises:
      InputError: the folder is not that of a run.
    """
    hydra = run_folder(given, key=key) / ".hydra"
    try:
        lines = [renewed_override(str(line)) for line in OmegaConf.load(hydra / "overrides.yaml")]
        saved = OmegaConf.load(hydra / "config.yaml")
        if not isinstance(saved, DictConfig):
            raise ValueError("config.yaml is not a mapping")
        return lines, renewed(saved)
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}"
        raise not_a_run(given, reason, key=key) from error
    except (ValueError, YAMLError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{key}={given}: its .hydra folder cannot be read: {reason}.") from error


def followed_by(
    composer: Composer, lines: Sequence[str], overrides: Sequence[Override]
) -> list[str]:
    """Returns the overrides of a run, without those that the new ones replace, and the new ones."""
    repeated = {override.get_key_element() for override in overrides}
    chosen = tuple(f"{override.key_or_group}." for override in overrides)
    return [
        *(
            str(old.input_line)
            for old in composer.parse(list(lines))
            if old.key_or_group not in NOT_TAKEN_OVER
            and old.get_key_element() not in repeated
            and not old.key_or_group.startswith(chosen)  # an option of a group that was replaced
        ),
        *(str(new.input_line) for new in overrides if new.key_or_group != "resume"),
    ]


def config_of_run(given: str, overrides: Sequence[str], *, conf: Path = CONF) -> DictConfig:
    """Returns the configuration of a run with other overrides, for a job that only reads the run.

    The mesh of the run is not taken over, because the job may run on another machine.

    Args:
      given: the value of ``run=``, the folder of a run or of one job of a sweep.
      overrides: the overrides of the job. They may not change the shape of the model.

    Raises:
      InputError: the folder is not that of a run, or an override is wrong, or this version of rl4p
        would compose another model than that of the run.
    """
    composer = Composer(conf)
    lines, saved = as_started("run", given)
    lines = [line for line in lines if not line.lstrip("+~").startswith(("mesh=", "mesh."))]
    then = composer.compose(followed_by(composer, lines, []), targets=False)
    if resolved(then.model) != resolved(saved.model):
        raise InputError(
            f"run={given}: the options of model={then.hydra.runtime.choices.get('model')} have "
            "changed since this run, so its policy cannot be built again from its overrides."
        )
    lines = followed_by(composer, lines, composer.parse(list(overrides)))
    config = without_hydra(composer.compose(lines))
    OmegaConf.set_struct(config, True)
    return config


def saved_config(folder: Path, keys: Sequence[str], trusted: Sequence[str]) -> DictConfig:
    """Returns the configuration that a run was started with.

    Args:
      folder: the folder of the run.
      keys: the keys of the root that must be present.
      trusted: the packages that it may name; the list in the folder itself is ignored.

    Raises:
      InputError: the folder is not that of a run.
    """
    try:
        config = OmegaConf.load(folder / ".hydra" / "config.yaml")
    except (OSError, YAMLError):
        config = None
    if not isinstance(config, DictConfig) or not set(keys) <= set(config):
        file = ".hydra/config.yaml"
        raise InputError(f"resume={folder} is not the folder of a run: {file} is absent or broken.")
    config = renewed(config)
    config.trusted_targets = list(trusted)
    return config


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value in a tree with its dotted key."""
    if isinstance(value, Mapping) and value:
        for name, child in value.items():
            yield from leaves(child, join(key, name))
    else:
        yield key, value
