"""Reads the options of the configuration groups from their YAML files, with the comments."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
CONF = ROOT / "conf"


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of a YAML file.

    Attributes:
      name: the path of the key in the file, with dots.
      value: the value as written; empty for a mapping, whose keys follow.
      comment: the comment on the line of the key, or on the lines above it.
    """

    name: str
    value: str
    comment: str


@dataclass(frozen=True, kw_only=True)
class Option:
    """One YAML file of a group.

    Attributes:
      about: the comment at the head of the file.
      target: the class that the option instantiates, or None.
      keys: all keys, those of the options that it inherits from included.
    """

    group: str
    name: str
    about: str
    target: str | None
    keys: tuple[Key, ...]


@cache
def groups() -> dict[str, list[Option]]:
    """Returns the options of each group of conf/, without Hydra's own."""
    found = {}
    for folder, _, names in os.walk(CONF, followlinks=True):
        group = os.path.relpath(folder, CONF)
        paths = sorted(Path(folder) / name for name in names if name.endswith(".yaml"))
        if paths and not group.startswith((".", "hydra")):
            found[group] = [option(path) for path in paths]
    return dict(sorted(found.items()))


def option(path: Path) -> Option:
    """Reads one option and the options that it inherits from."""
    text = path.read_text()
    tree = yaml.compose(text)
    keys: dict[str, Key] = {}
    for parent in parents(tree):
        keys |= {key.name: key for key in option(path.with_name(f"{parent}.yaml")).keys}
    keys |= {key.name: key for key in keys_of(tree, text)}
    target = keys.pop("_target_", None)
    return Option(
        group=os.path.relpath(path.parent, CONF),
        name=path.stem,
        about=head(text),
        target=target.value if target else None,
        keys=tuple(keys.values()),
    )


def parents(tree: yaml.Node | None) -> list[str]:
    """Returns the options of the same group in the defaults list."""
    if not isinstance(tree, yaml.MappingNode):
        return []
    for key, value in tree.value:
        if key.value == "defaults":
            names = [entry.value for entry in value.value if isinstance(entry, yaml.ScalarNode)]
            return [name for name in names if name.isidentifier() and name != "_self_"]
    return []


def keys_of(tree: yaml.Node | None, text: str, prefix: str = "") -> Iterator[Key]:
    """Yields the keys of a mapping and of the mappings in it, in the order of the file."""
    if not isinstance(tree, yaml.MappingNode):
        return
    lines = text.splitlines()
    for key, value in tree.value:
        if not prefix and key.value in ("defaults", "hydra"):
            continue
        name = f"{prefix}{key.value}"
        nested = isinstance(value, yaml.MappingNode) and not value.flow_style
        line = key.start_mark.line
        end = key.end_mark if nested else value.end_mark
        rest = lines[end.line][end.column :] if end.line < len(lines) else ""
        words = [*above(lines, line), rest.partition("#")[2].strip()]
        source = "" if nested else text[value.start_mark.index : value.end_mark.index]
        yield Key(name=name, value=source, comment=" ".join(filter(None, words)))
        if nested:
            yield from keys_of(value, text, f"{name}.")


def above(lines: list[str], line: int) -> list[str]:
    """Returns the comment lines above a line, except those that begin the file."""
    first = line
    while first > 0 and lines[first - 1].strip().startswith("#"):
        first -= 1
    return [] if first == 0 else [each.strip("# ") for each in lines[first:line]]


def head(text: str) -> str:
    """Returns the comment that begins a file, without its marks and without Hydra's package."""
    comment = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith("# @"):
            comment.append(line[1:].removeprefix(" "))
    return "\n".join(comment).strip()
