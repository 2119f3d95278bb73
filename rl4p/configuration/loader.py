"""Hydra's loader, which refuses to return a configuration that could run code nobody trusted.

Every configuration passes through it: in the checks before a run, when Hydra starts a job, and in
the processes that a sweep starts.
"""

from collections.abc import Sequence
from contextlib import suppress
from copy import copy, deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl4p.base.errors import InputError
from rl4p.configuration.capability import (
    refuse_mistyped,
    refuse_secrets,
    refuse_ungiven,
    uses,
    uses_of_hydra,
)
from rl4p.configuration.hydra_internals import (
    CachingConfigRepository,
    ConfigLoaderImpl,
    ConfigRepository,
    FileConfigSource,
    omit_unused_choices,
)
from rl4p.configuration.own_folder import OwnFolder
from rl4p.configuration.schema import without_hydra
from rl4p.configuration.slices import CHIPS, GIB, HOST, slice_of, topology_of
from rl4p.configuration.targets import resolved
from rl4p.configuration.tree import leaves
from rl4p.configuration.trust import TRUSTED, check_hydra, names_in, refuse_unsaid
from rl4p.configuration.yaml_file import (
    bounded_interpolations,
    configuration_of,
    limit_interpolations,
    permit_variables,
    read_yaml,
    refuse_variable,
    text_of,
)


class SliceSource(ConfigSource):
    """A source of configurations with one option for each slice of `rl4p.configuration.slices`."""

    def __init__(self) -> None:
        super().__init__(provider="slices", path="slices://rl4p.configuration.slices")

    @staticmethod
    def scheme() -> str:
        return "slices"

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path == "mesh"

    def is_config(self, config_path: str) -> bool:
        group, _, name = config_path.rpartition("/")
        return group == "mesh" and topology_of(name.removesuffix(".yaml")) is not None

    def load_config(self, config_path: str) -> ConfigResult:
        topology = topology_of(config_path.rpartition("/")[2].removesuffix(".yaml"))
        assert topology is not None  # `is_config`
        chips = slice_of(topology)
        dp = tp = 1
        if chips.chip.platform == "gpu":
            dp = max(1, chips.count // HOST)  # parameters are gathered only from the same host
        elif chips.chip.memory <= 32 * GIB:  # heads, feed-forward and vocabulary are divided too
            tp = min(4, chips.count)
        options = {"dp": dp, "fsdp": -1, "tp": tp, "topology": topology}
        config = OmegaConf.create({"defaults": ["auto", "_self_"], **options})
        return ConfigResult(
            provider=self.provider, path=self.full_path(), config=config, header={"package": None}
        )

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        """Returns one slice of each chip: all of them would fill the help."""
        if config_path != "mesh" or results_filter == ObjectType.GROUP:
            return []
        return [
            f"{name}_{max(n for n in chip.slices if n <= HOST)}" for name, chip in CHIPS.items()
        ]


class BoundedRepository(ConfigRepository):
    """The sources of a search path, whose YAML files are checked, and the slices of chips."""

    def initialize_sources(self, config_search_path: ConfigSearchPath) -> None:
        super().initialize_sources(config_search_path)
        self.sources = [
            FileConfigSource(source.provider, source.path)
            if source.scheme() == "file"  # Hydra imports its plugins anew, so classes differ
            else source
            for source in self.sources
        ]
        self.sources.insert(-1, SliceSource())  # Hydra expects the source of schemas to be the last

    def load_config(self, config_path: str) -> ConfigResult | None:
        """Returns the content of a file; `Loader` copies it before it is merged into others."""
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        if not isinstance(source, FileConfigSource):
            return super().load_config(config_path)
        path = Path(source.path) / source._normalize_file_name(config_path)
        own = Path(source.path).resolve()
        inside = source.provider == "main" or path.resolve().is_relative_to(own)
        if ".." in path.parts or not inside:
            raise InputError(
                f"{config_path} leads out of {source.path}: put the file itself there."
            )
        key = (config_path, source.provider, source.path, text := text_of(path))
        if key not in _results:
            config = configuration_of(text, path)
            defaults = self._extract_defaults_list(config_path, config)
            _results[key] = ConfigResult(
                provider=source.provider,
                path=f"file://{source.path}",
                config=config,
                header=FileConfigSource._get_header_dict(text[:512]),
                defaults_list=self._create_defaults_list(config_path, defaults),
            )
        return copy(_results[key])

    def __deepcopy__(self, _: dict) -> "BoundedRepository":
        """Shares the sources, which nothing changes: Hydra copies them for each composition."""
        return copy(self)


# The content of each file that was read, since a command composes several times. A file that has
# changed has another text, which is part of the key.
_results: dict[tuple[str, str, str, str], ConfigResult] = {}


class Loader(ConfigLoaderImpl):
    """A loader that takes trust from a command line only.

    Args:
      conf: the folder of the package's own files, whose root may trust packages too.
    """

    def __init__(
        self,
        search_path: ConfigSearchPath,
        conf: Path,
        words: Sequence[str],
        config_dir: str | None = None,
    ):
        refuse_secrets(words)
        limit_interpolations()
        omit_unused_choices()
        super().__init__(search_path)
        self.repository = BoundedRepository(search_path)
        self.conf, self.words = conf, [word for word in words if word]
        self.config_dir = config_dir
        self.options: dict[tuple[str, ObjectType | None], list[str]] = {}
        self.recorded: Sequence[str] = ()  # the words of an earlier start by this user
        self.allowed_then: Sequence[str] = ()  # the values that they allowed
        self.reads_others = False  # whether a run folder of somebody else gives values

    @cached_property
    def given(self) -> dict[str, Any]:
        """The values that the command line gives, by key."""
        return values_by_key(self.words)

    @cached_property
    def trusted(self) -> tuple[str, ...]:
        """The packages that the command line trusts, or the package's own root."""
        root = self.conf / "config.yaml"
        own = read_yaml(root) if root.is_file() else None
        return (
            *names_in((own or {}).get("trusted_targets")),
            *self.given.get("trusted_targets", ()),
        )

    @property
    def allowed(self) -> tuple[str, ...]:
        """The values that the command line allows, or allowed at an earlier start by this user."""
        return tuple(dict.fromkeys([*self.given.get("allow", ()), *self.allowed_then]))

    @cached_property
    def folder(self) -> OwnFolder | None:
        """The folder of `--config-dir`, whose recipes may be this user's own.

        With a search path there is none, because values may come from other folders.
        """
        if self.config_dir is None or "hydra.searchpath" in self.given:
            return None
        return OwnFolder(self.config_dir, given=self.given.get("trust") is True)

    @property
    def own(self) -> OwnFolder | None:
        """The folder of `--config-dir`, unless somebody else's run folder gives values, too."""
        return None if self.reads_others else self.folder

    def recall(self, words: Sequence[str], allowed: Sequence[str], *, own: bool) -> None:
        """Takes over what the command line of an earlier start gave, which this user signed.

        Args:
          words: the overrides of that start; empty forgets those of another.
          own: whether all values of that start are this user's.
        """
        self.recorded, self.allowed_then, self.reads_others = words, allowed, not own
        permit_variables([*self.words, *words], self.require_variable)

    def require_variable(self, name: str) -> None:
        """Refuses an environment variable that a recipe reads, unless it is trusted with it."""
        text = f"oc.env\0{name}"
        if (own := self.own) is None:
            refuse_variable(name)
        elif own.given:
            own.remember({text: f"the environment variable {name}"})
        elif not own.holds(text):
            yours = f"if the recipes in {own.folder} are yours, add trust=true once; or, "
            refuse_variable(name, yours)

    def load_configuration(
        self,
        config_name: str | None,
        overrides: list[str],
        run_mode: RunMode,
        from_shell: bool = True,
        validate_sweep_overrides: bool = True,
    ) -> DictConfig:
        limit_interpolations()  # a launcher may have started this process
        permit_variables([*self.words, *self.recorded], self.require_variable)
        config = super().load_configuration(
            config_name, overrides, run_mode, from_shell, validate_sweep_overrides
        )
        HydraConfig.instance().set_config(config)  # for interpolations of ${hydra:...}
        OmegaConf.set_readonly(config.hydra, False)  # launchers number the job in it
        self.check(config)
        return config

    def get_group_options(
        self,
        group_name: str,
        results_filter: ObjectType | None = ObjectType.CONFIG,
        config_name: str | None = None,
        overrides: list[str] | None = None,
    ) -> list[str]:
        """Returns the options of a group, and remembers them: to list them takes Hydra a while."""
        if config_name is not None or overrides:  # which may add folders to the search path
            return super().get_group_options(group_name, results_filter, config_name, overrides)
        key = group_name, results_filter
        if key not in self.options:
            self.options[key] = self.repository.get_group_options(*key)
        return list(self.options[key])

    @bounded_interpolations()
    def check(self, config: DictConfig) -> None:
        """Checks what the command line alone may give, and all that Hydra builds."""
        check_hydra(config.hydra, self.trusted)
        root = without_hydra(config)
        try:
            tree: Any = OmegaConf.to_container(root, resolve=True)
        except OmegaConfBaseException:  # what cannot be resolved is refused before it is used
            tree = OmegaConf.to_container(root, resolve=False)
        for name in config.hydra:  # resolved only to count what they expand to
            with suppress(OmegaConfBaseException):  # some have no value before a run
                if OmegaConf.is_config(node := config.hydra[name]):
                    OmegaConf.to_container(node, resolve=True)
        hydra = OmegaConf.to_container(config.hydra, resolve=False)
        refuse_unsaid(tree | {"hydra": hydra}, self.given.keys(), self.trusted, self.allowed)
        refuse_secrets((), tree | {"hydra": hydra})
        if self.given.get("trust") and self.own is None:
            raise InputError(
                "trust=true is for the recipes in a folder of yours: add --config-dir=FOLDER, with "
                "no hydra.searchpath and no run folder of somebody else."
            )
        if "trusted_targets" in tree:
            config.trusted_targets = tree["trusted_targets"]  # as it was checked
        if "allow" in tree:
            config.allow = list(self.allowed)

    def check_capabilities(
        self, config: DictConfig, *parts: str, tree: dict[str, Any] | None = None
    ) -> None:
        """Checks that no file gives a capability (`capability.py`).

        Args:
          config: a configuration whose targets are trusted.
          parts: the keys of the root to check, of which `hydra` are the places that Hydra writes
            to; none checks all but these.
          tree: the configuration resolved, where that was done before.
        """
        if parts == ("hydra",):
            node: Any = OmegaConf.to_container(config.hydra, resolve=False)
            try:
                sweep_folder = str(config.hydra.sweep.dir)
            except OmegaConfBaseException as error:
                reason = str(error).splitlines()[0]
                raise InputError(f"hydra.sweep.dir cannot be resolved: {reason}.") from error
            listed = list(uses_of_hydra(node, sweep_folder))
        else:
            if tree is None:
                tree = resolved(without_hydra(config), complete=False)
            tree = {key: value for key, value in tree.items() if not parts or key in parts}
            listed = list(uses(tree, (*TRUSTED, *self.trusted)))
            refuse_mistyped(listed)
        refuse_ungiven(
            listed,
            self.given.keys() | values_by_key(self.recorded).keys(),
            self.allowed,
            conf=self.conf,
            config_dir=self.config_dir,
            own=self.own,
        )

    @staticmethod
    def _embed_result_config(ret: ConfigResult, package_override: str | None) -> ConfigResult:
        result = ConfigLoaderImpl._embed_result_config(ret, package_override)
        if result.config is ret.config:  # and not a copy of it below a key
            result = copy(ret)
            result.config = deepcopy(ret.config)
        return result

    def _process_config_searchpath(
        self,
        config_name: str | None,
        parsed_overrides: list[Override],
        repo: CachingConfigRepository,
    ) -> None:
        # Only the command line and the root of the package have a search path.
        places: list[Any] = [
            o.value() for o in parsed_overrides if o.get_key_element() == "hydra.searchpath"
        ]
        for place in (each for places_of in places for each in places_of or ()):
            if "://" in str(place) and not str(place).startswith("file://"):
                raise InputError(
                    f"hydra.searchpath={place} is refused, because it imports a package: give a "
                    "folder, as file:///PATH."
                )
        super()._process_config_searchpath(config_name, parsed_overrides, repo)


def values_by_key(words: Sequence[str]) -> dict[str, Any]:
    """Returns the values that the words of a command line give, by key."""
    by_key = {}
    for word in OverridesParser.create().parse_overrides(list(words)):
        key = str(word.package or word.key_or_group)
        value: Any = None if word.is_sweep_override() else word.value()
        by_key |= {name.partition("[")[0]: each for name, each in leaves(value, key)}
        if key in ("trusted_targets", "allow"):
            values: Any = word.sweep_iterator() if word.is_discrete_sweep() else [value]
            by_key[key] = [name for each in values for name in names_in(each)]
    return by_key
