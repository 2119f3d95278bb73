"""Errors for overrides that are wrong, each with the words to write instead.

A word may not be KEY=VALUE, or its key or its option may not exist.
"""

import difflib
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any, NoReturn

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from rl4p.base.errors import InputError
from rl4p.configuration.hydra_internals import ConfigLoaderImpl
from rl4p.configuration.quoting import override, quoted, readable
from rl4p.configuration.slices import slice_names, unknown_slice
from rl4p.configuration.suggestions import (
    Suggestion,
    did_you_mean,
    key_correction,
    option_correction,
    write,
)
from rl4p.configuration.targets import holds_node, is_node, unknown_key
from rl4p.configuration.tree import join, leaves
from rl4p.configuration.trust import CONF

RECORD = "metrics.jsonl"  # its presence marks the folder of a run
JOBS = "jobs.yaml"  # its presence marks the folder of a sweep
LATEST = "latest"  # a value of run and resume that is no folder
MOST_CHOICES = 4  # more choices than this help nobody
YAML = (".yaml", ".yml")


def options_like(loader: ConfigLoaderImpl, name: str) -> list[list[str]]:
    """Returns [GROUP=OPTION] for every option of rl4p of this name, whatever its case."""
    return [
        [f"{group}={option}"]
        for group in loader.list_groups("")
        if group != "hydra"
        for option in loader.get_group_options(group)
        if same(option, name)
    ]


def options_with(loader: ConfigLoaderImpl, group: str, key: str) -> list[str]:
    """Returns the options of a group whose own YAML has a key, such as `path` or `a.b`."""
    options = []
    for option in loader.get_group_options(group):
        result = loader.repository.load_config(f"{group}/{option}")
        if result is not None and has(result.config, key):
            options.append(option)
    return options


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


def wrong_option(loader: ConfigLoaderImpl, group: str, option: str) -> InputError:
    """Returns the error for an option that its group does not have."""
    problem, options = f"{group}={option} does not exist", loader.get_group_options(group)
    names = [*options, *slice_names()] if group == "mesh" else options
    path = PurePath(option)
    a_file = path.suffix in YAML
    name = path.stem if a_file else option
    if alike := [known for known in names if same(known, name)]:
        return InputError(write(problem, [f"{group}={alike[0]}"]))
    if known := option_correction(group, option):
        return InputError(known.after(problem))
    if group == "mesh" and (error := unknown_slice(name)):
        return error
    if folders := folders_here(group, name):
        words = [[f"--config-dir={folder}", f"{group}={name}"] for folder in folders]
        return InputError(write(problem, *words[:MOST_CHOICES]))
    if a_file:
        return InputError(
            f"{problem}: put a file of your own at FOLDER/{group}/{path.name} and add "
            f"--config-dir FOLDER {group}={name}"
        )
    if re.fullmatch(r"[a-zA-Z_]\w*(\.\w+)*\.[A-Z]\w*", option):
        module, _, own = option.rpartition(".")
        return InputError(
            f"{problem}: for a class of your own write `_target_: {option}` into "
            f"FOLDER/{group}/{own.lower()}.yaml, and add --config-dir FOLDER "
            f"{group}={own.lower()} trusted_targets={module}"
        )
    if "/" not in group and (elsewhere := options_like(loader, option)):
        return InputError(write(f"{problem}, but another group has it", *elsewhere))
    hint = did_you_mean(option, names, f"{group}={{}}")
    return InputError(f"{problem}{hint} (options: {', '.join(options)})")


def folders_here(group: str, name: str) -> list[Path]:
    """Returns the folders here, or this one, that `--config-dir` needs for an option of its own."""
    if PurePath(name).name != name:
        return []
    folders = [Path(), *sorted(Path().glob("*"))]
    return [folder for folder in folders if (folder / group / f"{name}.yaml").is_file()]


def a_file_as_a_whole(problem: str, file: str) -> InputError:
    """Returns the error for a YAML file that stands where KEY=VALUE belongs."""
    path = Path(file)
    folder, group = path.parent.parent, path.parent.name
    if group and (CONF / group).is_dir() and path.suffix == YAML[0]:
        return InputError(write(problem, [f"--config-dir={folder}", f"{group}={path.stem}"]))
    return InputError(
        f"{problem}: put a recipe of your own at FOLDER/experiment/{path.stem}.yaml and add "
        f"--config-dir=FOLDER experiment={path.stem}; a file of TRL or verl is translated by "
        f"python -m rl4p.translate {shlex.quote(file)}"
    )


def wrong_key(
    loader: ConfigLoaderImpl, override: Override, config: DictConfig
) -> InputError | None:
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
            if parent.endswith("terms") and value in loader.get_group_options("term"):
                added = [f"+term@{path}={value}"]
        return InputError(write(f"{unknown_key(path, names, owner)}; to add it", added))
    problem = f"{path} is not an option of {owner}"
    if re.fullmatch(CONFIG_FILE, key) and PurePath(value).suffix in YAML:
        return a_file_as_a_whole(problem, value)
    correction = option_correction("data", value) if key == "data.path" else None
    if known := correction or key_correction(key, value, whole=True):
        return InputError(settled(loader, known).after(problem))
    if choices := with_another_option(loader, key, value, config.hydra.runtime.choices):
        return InputError(write(problem, *choices))
    if "." not in parent and (known := key_correction(key, value)):  # deeper names are local
        return InputError(settled(loader, known).after(problem))
    near = difflib.get_close_matches(name, names, n=1)
    places = []
    if path == key or not near:  # the whole name elsewhere says more than a part of it here
        places = [[f"{place}={value}"] for place in same_key_elsewhere(key, config)]
    if 0 < len(places) <= MOST_CHOICES:
        places += [[f"{join(parent, each)}={value}"] for each in near]
        return InputError(write(problem, *places))
    return unknown_key(path, names, owner)


def word_of_others(loader: ConfigLoaderImpl, line: str, root: str) -> InputError | None:
    """Returns the error for a key of another library, without composing; None for other words.

    Args:
      line: an override as it was written.
      root: the YAML file of the root.
    """
    key, _, value = line.partition("=")
    first = key.partition(".")[0]
    known = key_correction(key, value, whole=True) or ("." in key and key_correction(key, value))
    if not known or not first.isidentifier() or first in {"hydra", *loader.list_groups("")}:
        return None
    result = loader.repository.load_config(root)
    if result is None or first in result.config:
        return None
    return InputError(
        settled(loader, known).after(f"{first} is not an option of the configuration")
    )


def value_of(override: Override) -> str:
    """Returns the value of an override as it was written."""
    return str(override.input_line).partition("=")[2]


def settled(loader: ConfigLoaderImpl, correction: Suggestion) -> Suggestion:
    """Returns the correction with GROUP=OPTION of the group that has the option."""
    overrides = []
    for word in correction.overrides:
        group, _, option = word.partition("=")
        options = loader.get_group_options(group)
        elsewhere = options_like(loader, option)
        if options and elsewhere and option not in options:
            word = next((o for [o] in elsewhere if o.startswith(f"{group}=")), elsewhere[0][0])
        overrides.append(word)
    return correction._replace(overrides=overrides)


def with_another_option(
    loader: ConfigLoaderImpl, key: str, value: str, choices: Mapping[str, Any]
) -> list[list[str]]:
    """Returns the overrides that choose an option which has the key, then set the key.

    The option is named by the key itself (`ppo.clip_high`), or it is another one of the group
    (`data.path`).
    """
    first, _, rest = key.partition(".")
    if not rest:
        return []
    if first != "hydra" and first in loader.list_groups(""):
        options = options_with(loader, first, rest)
        others = [option for option in options if option != choices.get(first)][:MOST_CHOICES]
        return [[f"{first}={option}", f"{key}={value}"] for option in others]
    return [
        [chosen, f"{chosen.partition('=')[0]}.{rest}={value}"]
        for [chosen] in options_like(loader, first)
        if not chosen.startswith("experiment=")
    ]


def same_key_elsewhere(key: str, config: DictConfig) -> list[str]:
    """Returns the keys that end in the same name; only those that contain the key, if any do.

    For example, `reward.correct.weight` is contained in `reward.terms.correct.weight`.
    """
    parts = key.split(".")
    tree = OmegaConf.to_container(config, resolve=False)
    ours = [place.split(".") for place, _ in leaves(tree, lists=False)]
    places = [x for x in ours if x[-1] == parts[-1] and not {"hydra", "_target_"} & {*x}]
    containing = []
    for names in places:
        rest = iter(names)
        if all(part in rest for part in parts):  # in the same order
            containing.append(names)
    return [".".join(names) for names in containing or places]


def listed_options(
    loader: ConfigLoaderImpl, override: Override, config: DictConfig, places: Mapping[str, str]
) -> InputError | None:
    """Returns the error for a list of options where each has a name, such as reward.terms=[format].

    Args:
      config: the configuration without this override.
      places: by group, where its options belong, with {} for the name.
    """
    key, names = override.key_or_group, override.value()
    groups = [group for group, place in places.items() if place == f"{key}.{{}}"]
    if not groups or not isinstance(names, list):
        return None
    [group], here = groups, list(OmegaConf.select(config, key) or ())
    names = [str(name) for name in names]
    problem = f"{override.input_line} is a list, but each of {key} has a name"
    if unknown := [name for name in names if name not in (*here, *loader.get_group_options(group))]:
        options = loader.get_group_options(group)
        hint = did_you_mean(unknown[0], options) or f" (options: {', '.join(options)})"
        return InputError(f"{problem}, and {unknown[0]} is none of the options of {group}{hint}")
    words = [f"+{group}@{key}.{name}={name}" for name in names if name not in here]
    words += [f"~{group}@{key}.{name}" for name in here if name not in names]
    return InputError(write(problem, words) if words else f"{problem}; leave it out: it has these.")


# Words that are not KEY=VALUE as Hydra reads it.

KEY = r"[+~]{0,2}[\w@/.-]+"
NAME = r"[a-z]\w*(\.\w+)*"  # a key, without a value behind it
CONFIG_FILE = r"config([-_](file|path|name))?"  # what others call the file of a run


def refuse_arguments(
    argv: list[str], message: str, *, keys: Mapping[str, str] | None = None
) -> NoReturn:
    """Raises an `InputError` for a message of argparse.

    A flag with a value, such as ``--seed 1`` or ``--seed=1``, is probably an option of the run.

    Args:
      keys: the keys to write for flags of other names.
    """
    for flag, after in zip(argv, [*argv[1:], ""], strict=True):
        key, equals, value = flag.removeprefix("--").partition("=")
        file = value if equals else after
        if flag != key and re.fullmatch(CONFIG_FILE, key) and PurePath(file).suffix in YAML:
            raise a_file_as_a_whole(f"--{key} is no flag for a file", file)
    _, _, refused = message.partition("unrecognized arguments: ")
    flags = [word for word in argv if word.startswith("-") and f" {word} " in f" {refused} "]
    overrides = []
    for flag, after in zip(argv, [*argv[1:], "-"], strict=True):
        key, equals, value = flag.lstrip("-").partition("=")
        if not equals and not after.startswith("-") and "=" not in after:
            value = after
        if flag in flags and value:
            key = key.replace("-", "_")
            key = (keys or {}).get(key, key)
            known = None if key in (keys or {}).values() else key_correction(key, value)
            overrides += known.overrides if known else [readable(key, value)]
    if overrides:
        names = " ".join(flags)
        raise InputError(write(f"{names} is no flag; options have no dashes", overrides))
    raise InputError(f"{message[:1].upper()}{message[1:]}; see --help.")


def unreadable(
    lines: Sequence[str], index: int, reason: str, options: Sequence[Sequence[str]]
) -> InputError:
    """Returns the error for one override that Hydra cannot read.

    Args:
      options: the choices [GROUP=OPTION] whose option has the name of the line.
    """
    line = lines[index]
    problem = f"{line} cannot be read as KEY=VALUE"
    if joined := without_spaces(lines, index):
        return InputError(write("KEY=VALUE must not contain spaces", joined))
    key, equals, value = line.partition("=")
    if not equals:
        bare = f"{line} is not KEY=VALUE"
        if line.lower() in ("help", "h", "?"):
            return InputError(write(bare, ["--help"]))
        if line.lower() in ("multirun", "sweep"):
            return InputError(write(bare, ["-m"]))
        if line == LATEST or any((Path(line) / name).exists() for name in (RECORD, JOBS)):
            return InputError(write(bare, [override("resume", line)]))
        if options:
            return InputError(write(bare, *options))
        if PurePath(line).suffix in YAML:
            return a_file_as_a_whole(bare, line)
        after = lines[index + 1] if index + 1 < len(lines) else "="
        if re.fullmatch(f"{NAME}:?", line) and "=" not in after:
            return InputError(write(bare, [readable(line.rstrip(":"), after)]))
        key, colon, value = line.partition(":")
        if colon and re.fullmatch(KEY, key) and value:
            return InputError(write(bare, [readable(key, value.strip())]))
        return InputError(f"{bare}: --help lists the keys.")
    if value.startswith("~/"):
        expanded = override(key, str(Path(value).expanduser()))
        return InputError(write(f"{problem}, and the shell does not expand ~ in it", [expanded]))
    if value.startswith("=") or not re.fullmatch(KEY, key):
        if re.fullmatch(KEY, key.strip()) and (plain := value.strip("= ")):
            return InputError(write(problem, [f"{key.strip()}={plain}"]))
        return InputError(f"{problem}: {reason}")
    if value.startswith(("[", "{", "'", '"')):
        return InputError(f"{problem}: {reason}")
    why = "such a value needs quotes, inside quotes for the shell"
    return InputError(write(f"{problem} ({why})", [override(key, value)]))


def without_spaces(lines: Sequence[str], index: int) -> list[str] | None:
    """Joins the parts of an override that was written with spaces, such as `seed = 1`.

    Returns the joined override, after `-m` if it has several values. Returns None if the word at
    `index` is not part of such an override.
    """
    line, before, after = lines[index], lines[:index], lines[index + 1 :]
    if after and after[0].startswith("=") and "=" not in line:
        word = line + "".join(after[:2] if after[0] == "=" else after[:1])
    elif before and before[-1].endswith("=") and "=" not in line:
        word = before[-1] + line
    elif line.endswith(",") and "=" in line and after:
        word, rest = line, list(after)
        while word.endswith(",") and rest:
            word += rest.pop(0)
    else:
        return None
    return ["-m", word] if "," in word else [word]


def refuse_several_options(override: Override, groups: Collection[str]) -> None:
    """Refuses a list of options for a group that takes one."""
    if override.key_or_group in groups and override.package is None:
        options = override.value()
        if isinstance(options, list):
            word = f"{override.key_or_group}={','.join(map(str, options))}"
            problem = f"{override.input_line} is a list, but a run has one {override.key_or_group}"
            if len(options) > 1 and (
                known := option_correction(override.key_or_group, str(options))
            ):
                raise InputError(known.after(problem))
            raise InputError(write(problem, ["-m", word] if len(options) > 1 else [word]))


def several_values(override: Override) -> InputError:
    """Returns the error for a value with commas outside a sweep."""
    line, key = str(override.input_line), override.get_key_element()
    value = line.removeprefix(f"{key}=")
    if key == "trusted_targets":
        return InputError(write(f"{line} has several values", [f"{key}=[{value}]"]))
    problem = f"{line} has several values: add -m to sweep over them."
    if override.is_choice_sweep() and not value.startswith("choice("):
        problem = write(f"{problem} If they are one value", [quoted(key, value)])
    return InputError(problem)
