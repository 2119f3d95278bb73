"""Composition with Hydra, and one-sentence messages for the errors that Hydra raises."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from hydra import version
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, ValueType
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rl4p.base.errors import InputError
from rl4p.configuration.hydra_internals import create_config_search_path
from rl4p.configuration.loader import Loader
from rl4p.configuration.override_errors import (
    listed_options,
    options_like,
    refuse_several_options,
    unreadable,
    value_of,
    word_of_others,
    wrong_key,
    wrong_option,
)
from rl4p.configuration.schema import GROUPS, PLACES, check, without_hydra, without_place
from rl4p.configuration.slices import refuse_sizes_beside_a_shape
from rl4p.configuration.suggestions import option_correction
from rl4p.configuration.trust import CONF

CONFIG = "config"  # the primary YAML

COMPOSING_FAILED = (HydraException, ValueError, TypeError, YAMLError)

# Options of Hydra's groups that come with a plugin, and the extra of rl4p that installs it.
PLUGINS = {
    "hydra/launcher": {"joblib": "sweep", "submitit_local": "sweep", "submitit_slurm": "sweep"},
    "hydra/sweeper": {"optuna": "search"},
}


class Composer:
    """A composer that builds and checks configurations from one search path.

    Args:
      conf: the folder of the YAML files of the package, which are trusted.
      config_dir: a folder with further YAML files, which are not.
      words: the command line, whose words alone can give trust (`trust.py`).
    """

    def __init__(self, conf: Path = CONF, config_dir: str | None = None, words: Sequence[str] = ()):
        version.setbase("1.3")
        search_path = create_config_search_path(str(conf.resolve()))
        if config_dir is not None:
            if not Path(config_dir).is_dir():
                raise InputError(f"--config-dir {config_dir} is not a folder.")
            folder = f"file://{Path(config_dir).resolve()}"
            search_path.prepend("command-line", folder, SearchPathQuery(provider="schema"))
        self.config_dir = config_dir
        self.loader = Loader(search_path, conf, words, config_dir)

    def compose(self, lines: list[str], *, targets: bool = True) -> DictConfig:
        """Returns the checked configuration of one job, with its `hydra` node."""
        config = self.load(lines)
        self.check(config, targets=targets)
        return config

    def check(self, config: DictConfig, *, targets: bool = True) -> None:
        """Checks a configuration (`schema.check`) and, with its targets, its capabilities."""
        tree = check(config, targets=targets)
        refuse_sizes_beside_a_shape(config, self.loader.given)
        if targets:
            self.loader.check_capabilities(config, tree=tree)

    def load(self, lines: list[str]) -> DictConfig:
        """Returns the configuration of one job unchecked; a swept key keeps its default."""
        for line in lines:  # to compose and to explain the failure takes twice as long
            if error := word_of_others(self.loader, line, CONFIG):
                raise error
        try:
            return self.loader.load_configuration(
                CONFIG, lines, RunMode.MULTIRUN, validate_sweep_overrides=False
            )
        except MissingConfigException as error:  # an option that its group does not have
            if error.options is None:
                raise InputError(one_line(error).partition(" Config search path")[0]) from error
            path = str(error.missing_cfg_file)
            cut = path.rpartition if path.startswith("hydra/") else path.partition
            group, _, option = cut("/")
            if (extra := PLUGINS.get(group, {}).get(option)) is not None:
                need = f"{group}={option} needs a plugin: pip install 'rl4p[{extra}]'."
                raise InputError(need) from error
            raise wrong_option(self.loader, group, option) from error
        except COMPOSING_FAILED as error:
            raise self.explain(error, lines) from error

    def parse(self, lines: list[str]) -> list[Override]:
        """Returns the overrides of a command line."""
        parser = OverridesParser.create()
        overrides = []
        for index, line in enumerate(lines):
            try:
                overrides.append(parser.parse_override(line))
            except HydraException as error:
                choices = options_like(self.loader, line)
                raise unreadable(lines, index, one_line(error), choices) from error
            refuse_several_options(overrides[-1], GROUPS)
            overrides[-1].config_loader = self.loader  # glob(...) reads the options from it
        return overrides

    def explain(self, error: Exception, lines: list[str]) -> InputError:
        """Returns an error that names the override that Hydra refused and a close match."""

        def sets_a_value(override: Override) -> bool:
            group = override.key_or_group
            return not self.loader.get_group_options(group, config_name=CONFIG, overrides=lines)

        config, accepted = None, []
        for override in [None, *sorted(self.parse(lines), key=sets_a_value)]:  # options first
            if override is not None:
                accepted.append(str(override.input_line))
            try:
                if len(accepted) == len(lines) and config is not None:
                    raise error  # all overrides together: `load` has seen them fail
                config = self.loader.load_configuration(
                    CONFIG, accepted, RunMode.MULTIRUN, validate_sweep_overrides=False
                )
            except COMPOSING_FAILED:
                if override is None or config is None:
                    break
                if listed := listed_options(self.loader, override, config, PLACES):
                    return listed
                unknown = sets_a_value(override) and wrong_key(self.loader, override, config)
                if override.is_add() and not unknown:
                    return InputError(f"{override.input_line[1:]} needs no +: it already exists.")
                if override.key_or_group in PLACES and override.package is None:
                    return without_place(override.key_or_group, value_of(override))
                if option_correction(override.key_or_group, value_of(override)) and not unknown:
                    return wrong_option(self.loader, override.key_or_group, value_of(override))
                refusal = InputError(f"{override.input_line} is refused: {one_line(error)}")
                return unknown or refusal
        return InputError(one_line(error))


def sweep_jobs(overrides: list[Override]) -> Iterator[list[str]]:
    """Yields jobs that use every value once: all first values, then one changed axis at a time."""
    axes: dict[str, list[str]] = {}  # the last override of a key wins, as in Hydra's sweeper
    for override in overrides:
        key = override.get_key_element()
        axes[key] = [str(override.input_line)]
        if override.is_discrete_sweep():
            axes[key] = [f"{key}={value}" for value in override.sweep_string_iterator()]
        elif override.is_interval_sweep():  # for a search; both ends stand for all values
            interval = cast(IntervalSweep, override.value())
            axes[key] = [f"{key}={end}" for end in (interval.start, interval.end)]
        if not axes[key]:
            raise InputError(f"{override.input_line} has no values to sweep over.")
    first = {key: values[0] for key, values in axes.items()}
    yield list(first.values())
    for key, values in axes.items():
        for value in values[1:]:
            yield list((first | {key: value}).values())


def refused_jobs(
    overrides: Sequence[Override], jobs: Sequence[Sequence[str]], errors: Mapping[int, InputError]
) -> InputError:
    """Returns one error for the jobs of a sweep that cannot run; it names the values to leave out.

    Args:
      jobs: its jobs from `sweep_jobs`, which have the same keys in the same order.
    """
    globs = {o.get_key_element() for o in overrides if o.value_type == ValueType.GLOB_CHOICE_SWEEP}
    sentences = []
    for sentence in dict.fromkeys(str(error) for error in errors.values()):
        failed = {index for index, error in errors.items() if str(error) == sentence}
        for column in zip(*jobs, strict=True):
            key = column[0].partition("=")[0]
            values = {column[index] for index in failed}
            with_them = {index for index, value in enumerate(column) if value in values}
            if with_them == failed != set(range(len(jobs))) and not sentence.startswith(key):
                sentence += f" This refuses {', '.join(sorted(values))}: leave it out"
                if key in globs:
                    names = sorted(value.partition("=")[2] for value in values)
                    sentence += f" with {key}=glob(..., exclude=[{','.join(names)}])"
                sentence += "."
                break
        sentences.append(sentence)
    return InputError(" ".join(sentences))


def one_line(error: Exception) -> str:
    """Returns Hydra's message and its cause in one line."""
    is_reason = isinstance(error.__cause__, OmegaConfBaseException)
    reason = str(error.__cause__).partition("full_key")[0] if is_reason else ""
    return " ".join(f"{error} {reason}".split())


def compose(
    overrides: Sequence[str] = (), *, config_dir: str | None = None, conf: Path = CONF
) -> DictConfig:
    """Returns the configuration that a job would get from these overrides, fully checked."""
    config = without_hydra(Composer(conf, config_dir, overrides).compose(list(overrides)))
    OmegaConf.set_struct(config, True)
    return config
