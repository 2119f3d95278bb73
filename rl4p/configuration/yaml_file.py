"""Reading of YAML files that may come from anyone: their size is bounded before they are built."""

import stat
from io import StringIO
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf

from rl4p.errors import InputError

MOST_BYTES = 2**20
MOST_VALUES = 100_000  # after every alias is replaced by a copy of what it names


def load_yaml(path: Path) -> DictConfig | ListConfig:
    """Returns the configuration in a file; see `read_yaml`."""
    text = text_of(path)
    try:
        return OmegaConf.load(StringIO(text))
    except RecursionError as error:
        raise InputError(f"{path} is nested too deep.") from error


def read_yaml(path: Path) -> Any:
    """Returns the content of a file as plain values.

    Raises:
      InputError: the file is not a regular one, or its content is too large or too deep.
      OSError, ValueError, yaml.YAMLError: the file cannot be read.
    """
    try:
        return yaml.safe_load(text_of(path))
    except RecursionError as error:
        raise InputError(f"{path} is nested too deep.") from error


def text_of(path: Path) -> str:
    """Returns the text of a YAML file, after a check of how much it describes.

    Raises:
      InputError, OSError, ValueError, yaml.YAMLError: as in `read_yaml`.
    """
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise InputError(f"{path} is not a regular file.")
    if found.st_size > MOST_BYTES:
        raise InputError(f"{path} has {found.st_size:,} bytes: at most {MOST_BYTES:,} are read.")
    text = path.read_text(encoding="utf-8")
    try:
        # Only aliases describe more than the text shows.
        values = size(yaml.compose(text, yaml.SafeLoader), {}) if "&" in text else 0
    except RecursionError:
        values = MOST_VALUES + 1  # too deep, or an alias inside of what it names
    if values > MOST_VALUES:
        raise InputError(
            f"{path} describes too much: at most {MOST_VALUES:,} values with all aliases replaced."
        )
    return text


def size(node: yaml.Node | None, known: dict[int, int]) -> int:
    """Returns the number of values in a node, aliases replaced; `known` holds those of others."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        children = node.value
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        known[id(node)] = 1 + sum(size(child, known) for child in children)
    return known[id(node)]
