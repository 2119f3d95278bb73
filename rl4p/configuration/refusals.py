"""Errors for keys and options that do not exist, each with the overrides to write instead."""

from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from rl4p.configuration.corrections import Correction, of_key, of_option, write
from rl4p.configuration.moved import KEYS
from rl4p.configuration.targets import holds_node, is_node, unknown_key
from rl4p.configuration.trust import did_you_mean, join
from rl4p.errors import InputError

MOST_CHOICES = 4  # more choices than this help nobody


class Catalogue:
    """The groups of a search path, their options, and the keys of each option."""

    def __init__(self, loader: ConfigLoaderImpl):
        self.loader = loader
        self.known: dict[str, list[str]] = {}  # to list the options of a group takes Hydra a while

    def groups(self) -> list[str]:
        """Returns the names of all groups of rl4p."""
        return [group for group in self.loader.list_groups("") if group != "hydra"]

    def options(self, group: str) -> list[str]:
        """Returns the options of a group; [] if there is no such group."""
        if group not in self.known:
            self.known[group] = self.loader.get_group_options(group)
        return self.known[group]

    def options_like(self, name: str) -> list[list[str]]:
        """Returns [GROUP=OPTION] for every option of this name, whatever its case."""
        return [
            [f"{group}={option}"]
            for group in self.groups()
            for option in self.options(group)
            if same(option, name)
        ]

    def options_with(self, group: str, key: str) -> list[str]:
        """Returns the options of a group whose own YAML has a key, such as `path` or `a.b`."""
        found = []
        for option in self.options(group):
            result = self.loader.repository.load_config(f"{group}/{option}")
            if result is not None and has(result.config, key):
                found.append(option)
        return found


def has(node: Any, key: str) -> bool:
    """Returns whether a mapping has a key, as far as its values are mappings."""
    name, _, rest = key.partition(".")
    if name not in list(node):  # the mapping itself denies having ???
        return False
    child = node._get_node(name)
    return not (rest and isinstance(child, DictConfig)) or has(child, rest)


def same(name: str, other: str) -> bool:
    """Returns whether two names differ only in their case and in the sign between their words."""
    return name.casefold() == other.casefold().replace("-", "_")


def wrong_option(catalogue: Catalogue, group: str, option: str) -> InputError:
    """Returns the error for an option that its group does not have."""
    problem, options = f"{group}={option} does not exist", catalogue.options(group)
    path = PurePath(option)
    a_file = path.suffix in (".yaml", ".yml")
    name = path.stem if a_file else option
    if alike := [known for known in options if same(known, name)]:
        return InputError(write(problem, [f"{group}={alike[0]}"]))
    if known := of_option(group, option):
        return InputError(known.after(problem))
    if a_file:
        return InputError(
            f"{problem}: put a file of your own at FOLDER/{group}/{path.name} and add "
            f"--config-dir FOLDER {group}={name}"
        )
    if "/" not in group and (elsewhere := catalogue.options_like(option)):
        return InputError(write(f"{problem}, but another group has it", *elsewhere))
    hint = did_you_mean(option, options, f"{group}={{}}")
    return InputError(f"{problem}{hint} (options: {', '.join(options)})")


def wrong_key(catalogue: Catalogue, override: Override, config: DictConfig) -> InputError | None:
    """Returns the error for an override whose key does not exist; None if the key exists.

    Args:
      config: the configuration without this override.
    """
    node, path, parent, name = config, "", "", ""
    for name in override.key_or_group.split("."):
        parent, path = path, join(path, name)
        if not isinstance(node, DictConfig):
            return InputError(f"{path} does not exist: {parent} is a value and has no keys.")
        if name not in node:
            break
        node = node[name]
    else:
        return None
    choice = config.hydra.runtime.choices.get(parent)
    owner = f"{parent}={choice}" if choice else parent or "the configuration"
    names = [str(key) for key in node if key not in ("hydra", "_target_")]
    key, value = override.key_or_group, value_of(override)
    plain = OmegaConf.to_container(node, resolve=False)
    if parent and holds_node(plain) and not is_node(plain):
        added = [f"+{key}={value}"]
        if key != f"{path}._target_":
            added = [f"+{path}._target_=package.module.Class", *added]
            if parent.endswith("terms") and value in catalogue.options("term"):
                added = [f"+term@{path}={value}"]
        return InputError(write(f"{unknown_key(path, names, owner)}; to add it", added))
    problem = f"{path} is not an option of {owner}"
    of_file = of_option("data", value) if key == "data.path" else None
    if known := of_file or of_key(key, value, whole=True):
        return InputError(settled(catalogue, known).after(problem))
    if choices := with_another_option(catalogue, key, value, config.hydra.runtime.choices):
        return InputError(write(problem, *choices))
    if "." not in parent and (known := of_key(key, value)):  # deeper, it is a name of its own
        return InputError(settled(catalogue, known).after(problem))
    near = KEYS.get(name) in names or did_you_mean(name, names)
    places = [] if near else [[f"{place}={value}"] for place in same_key_elsewhere(key, config)]
    if 0 < len(places) <= MOST_CHOICES:
        return InputError(write(problem, *places))
    return unknown_key(path, names, owner)


def value_of(override: Override) -> str:
    """Returns the value of an override as it was written."""
    return str(override.input_line).partition("=")[2]


def settled(catalogue: Catalogue, correction: Correction) -> Correction:
    """Returns the correction with GROUP=OPTION of the group that has the option."""
    overrides = []
    for word in correction.overrides:
        group, _, option = word.partition("=")
        options = catalogue.options(group)
        elsewhere = catalogue.options_like(option)
        if options and elsewhere and option not in options:
            word = next((o for [o] in elsewhere if o.startswith(f"{group}=")), elsewhere[0][0])
        overrides.append(word)
    return correction._replace(overrides=overrides)


def with_another_option(
    catalogue: Catalogue, key: str, value: str, choices: Mapping[str, Any]
) -> list[list[str]]:
    """Returns the overrides that choose an option which has the key, then set the key.

    The option is named by the key itself (`ppo.clip_high`), or it is another one of the group
    (`data.path`).
    """
    first, _, rest = key.partition(".")
    if not rest:
        return []
    if first in catalogue.groups():
        found = catalogue.options_with(first, rest)
        others = [option for option in found if option != choices.get(first)][:MOST_CHOICES]
        return [[f"{first}={option}", f"{key}={value}"] for option in others]
    return [
        [chosen, f"{chosen.partition('=')[0]}.{rest}={value}"]
        for [chosen] in catalogue.options_like(first)
        if not chosen.startswith("experiment=")
    ]


def same_key_elsewhere(key: str, config: DictConfig) -> list[str]:
    """Returns the keys that end in the same name; only those that contain the key, if any do.

    For example, `reward.correct.weight` is contained in `reward.terms.correct.weight`.
    """
    parts = key.split(".")
    tree = OmegaConf.to_container(config, resolve=False)
    found = [place for place in keys_below(tree) if place.rpartition(".")[2] == parts[-1]]
    return [place for place in found if contains(place.split("."), parts)] or found


def contains(names: list[str], parts: list[str]) -> bool:
    """Returns whether the parts are among the names in the same order."""
    rest = iter(names)
    return all(part in rest for part in parts)


def keys_below(value: Any, key: str = "") -> Iterator[str]:
    """Yields the dotted keys of all values except Hydra's own."""
    for name, child in value.items():
        if isinstance(child, Mapping) and child and name != "hydra":
            yield from keys_below(child, join(key, name))
        elif name not in ("hydra", "_target_"):
            yield join(key, name)
