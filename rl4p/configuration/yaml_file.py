"""Reading of YAML files that may come from anyone: their size is bounded before they are built."""

import re
import stat
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl4p.base.errors import InputError
from rl4p.configuration.interpolations import limit_interpolations

MOST_BYTES = 2**20
MOST_VALUES = 10_000  # after every alias is replaced by a copy of what it names
MOST_LEVELS = 50
# The plain scalars that are no texts. YAML 1.1 has more, so that 12:30 and 0755 would be other
# numbers, NO would be false, and 2026-01-31 a date.
SCALARS = {
    "bool": ("tTfF", r"true|True|TRUE|false|False|FALSE"),
    "int": ("-0123456789", r"0|-?[1-9][0-9]*"),
    "float": (
        "-.0123456789",
        r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)"
        r"|\.[0-9]+(?:[eE][-+][0-9]+)?|-?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    ),
    "null": ("~nN\0", r"~|null|Null|NULL|"),
    "merge": ("<", "<<"),
}
_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class LOADER(_BASE):
    """A loader that keeps a plain scalar as its text, unless it is one of `SCALARS`."""

    yaml_implicit_resolvers: ClassVar[dict[str, list]] = {}

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = set()
        for key, _ in node.value:
            if key.tag != "tag:yaml.org,2002:str":
                continue
            if key.value in names:
                problem = f"found duplicate key {key.value}"
                context = "while constructing a mapping", node.start_mark
                raise yaml.constructor.ConstructorError(*context, problem, key.start_mark)
            names.add(key.value)
        return super().construct_mapping(node, deep=deep)


for kind, (first, pattern) in SCALARS.items():
    LOADER.add_implicit_resolver(
        f"tag:yaml.org,2002:{kind}",
        re.compile(f"^(?:{pattern})$"),
        [letter.strip("\0") for letter in first],  # the null may be empty
    )


class Text(StringIO):
    """The text of a file, whose name PyYAML puts into its errors."""

    def __init__(self, text: str, path: Path):
        super().__init__(text)
        self.name = str(path)


def load_yaml(path: Path) -> DictConfig | ListConfig:
    """Returns the configuration in a file.

    Raises:
      ValueError: OmegaConf cannot represent it, for example because of a broken interpolation.
      InputError, OSError, yaml.YAMLError: as in `read_yaml`.
    """
    limit_interpolations()
    try:
        return configuration_of(text_of(path), path)
    except OmegaConfBaseException as error:
        raise ValueError(str(error)) from error


def configuration_of(text: str, path: Path) -> DictConfig | ListConfig:
    """Returns the configuration in the text of a file. An empty text is an empty configuration.

    Raises:
      ValueError: the text is a single value.
    """
    value = yaml.load(Text(text, path), LOADER)
    if value is not None and not isinstance(value, (dict, list)):
        raise ValueError(f"{path} is not a mapping.")
    return OmegaConf.create({} if value is None else value)


def read_yaml(path: Path, *, times: int = 1) -> Any:
    """Returns the content of a file as plain values.

    Args:
      path: the file.
      times: the factor by which the limits of bytes and values are raised, for a file that holds
        many configurations.

    Raises:
      InputError: the file is not a regular one, or its content is too large or too deep.
      OSError, ValueError, yaml.YAMLError: the file cannot be read.
    """
    return yaml.load(Text(text_of(path, times=times), path), LOADER)


def read_mapping(path: Path) -> dict[str, Any]:
    """Returns the mapping in a file.

    Raises:
      InputError: the file cannot be read, or holds something else; the message names it.
    """
    try:
        content = read_yaml(path)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InputError(f"{path} cannot be read: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise InputError(f"{path} is not a mapping.")
    return content


def text_of(path: Path, *, times: int = 1) -> str:
    """Returns the text of a YAML file, after a check of how much it describes.

    Args:
      path: the file.
      times: as in `read_yaml`.

    Raises:
      InputError, OSError, ValueError, yaml.YAMLError: as in `read_yaml`.
    """
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise InputError(f"{path} is not a regular file.")
    if status.st_size > (most := times * MOST_BYTES):
        raise InputError(f"{path} has {status.st_size:,} bytes: at most {most:,} are read.")
    text = path.read_text(encoding="utf-8")
    check_size(text, path, most_values=times * MOST_VALUES)
    return text


def check_size(text: str, path: Path, *, most_values: int = MOST_VALUES) -> None:
    """Refuses the text of a file that describes many values or levels. It needs no recursion.

    Raises:
      InputError, yaml.YAMLError: the text describes too much, or is not YAML.
    """
    total, known = 0, {}  # the number of values, also by the anchor that names them
    levels: list[tuple[str | None, int]] = []  # anchors of open collections, and values before them
    for event in yaml.parse(Text(text, path), LOADER):
        if isinstance(event, yaml.CollectionEndEvent):
            anchor, before = levels.pop()
            known[anchor] = total - before
        elif isinstance(event, yaml.CollectionStartEvent):
            levels.append((event.anchor, total))
            total += 1
        elif isinstance(event, yaml.ScalarEvent):
            total += 1
            known[event.anchor] = 1
        elif isinstance(event, yaml.AliasEvent):
            within = any(event.anchor == anchor for anchor, _ in levels)
            total += most_values + 1 if within else known.get(event.anchor, 1)
        if len(levels) > MOST_LEVELS:
            raise InputError(f"{path} is nested too deep: at most {MOST_LEVELS} levels are read.")
        if total > most_values:
            raise InputError(
                f"{path} describes too much: at most {most_values:,} values with all aliases "
                "replaced."
            )
