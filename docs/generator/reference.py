"""The reference of the configuration, of the commands and of the Python packages."""

import subprocess
import sys
import tomllib

import yaml

from docs.generator.algorithms import TITLES
from docs.generator.docstrings import attributes, first_sentence, linked, located, of_module
from docs.generator.options import CONF, ROOT, Option, groups, option
from docs.generator.tables import table
from rl4p.configuration.schema import PLACES

PACKAGE = ROOT / "rl4p"


def defaults() -> dict[str, str]:
    """Returns the option that each group has without overrides."""
    entries = yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
    pairs = [pair for entry in entries if isinstance(entry, dict) for pair in entry.items()]
    return {group: str(name) for group, name in pairs}


def file_of(group: str) -> str:
    """Returns the file of a group's page; the name of a group may have a slash."""
    return f"{group.replace('/', '_')}.md"


def configuration_index() -> str:
    """Returns the page with the keys of the root and a table of all groups."""
    rows = [
        (
            f"[`{group}`]({file_of(group)})",
            f"`{defaults()[group]}`" if defaults().get(group, "None") != "None" else "",
            ", ".join(f"[`{each.name}`]({file_of(group)}#{each.name})" for each in options),
        )
        for group, options in groups().items()
    ]
    root = option(CONF / "config.yaml")
    return "\n\n".join(
        [
            "# Configuration",
            "Choose an option of a group with `GROUP=OPTION`, and set a key with "
            "`GROUP.KEY=VALUE`. `python -m rl4p.train --cfg job --resolve` prints the whole "
            "configuration without running it.",
            "## Groups",
            table(("group", "default", "options"), rows),
            "## Keys of the root",
            keys_table(root, ""),
        ]
    )


def configuration_page(group: str) -> str:
    """Returns the page of one group, with every option and every key."""
    parts = [f"# `{group}`"]
    if group in TITLES:
        parts.append(f"The [paper index](../../algorithms/{group}.md) has the formulas.")
    for each in groups()[group]:
        parts.append(f"## {each.name}")
        if each.about:
            parts.append(commands_fenced(each.about))
        if each.target:
            cls = located(each.target)
            package = each.target.split(".")[1]
            link = f"[`{each.target}`](../python/{package}.md#{each.target})"
            parts.append(f"{linked(first_sentence(cls.__doc__ or ''))}. Class: {link}.")
        path = CONF / group / f"{each.name}.yaml"
        if "# @package " in path.read_text():  # its keys are not those of the group
            parts.append(f"```yaml\n{without_head(path.read_text())}\n```")
        elif each.keys:
            place = PLACES.get(group, group).format("NAME")
            parts.append(keys_table(each, f"{place}."))
    return "\n\n".join(parts) + "\n"


def keys_table(option: Option, prefix: str) -> str:
    """Returns the keys with their comments, or else with the attributes of the class."""
    meanings = attributes(located(option.target)) if option.target else {}
    rows = [
        (
            f"`{prefix}{key.name}`",
            f"`{key.value}`" if key.value else "",
            key.comment or meanings.get(key.name, ""),
        )
        for key in option.keys
    ]
    return table(("key", "default", "meaning"), rows)


def commands_fenced(comment: str) -> str:
    """Returns a comment with its indented lines as blocks of commands."""
    lines: list[str] = []
    for line in comment.splitlines():
        indented = line.startswith("  ")
        if indented and (not lines or not inside(lines)):
            lines.append("```sh")
        if not indented and inside(lines):
            lines.append("```")
        lines.append(line[2:] if indented else line)
    return "\n".join([*lines, "```"] if inside(lines) else lines)


def inside(lines: list[str]) -> bool:
    """Returns whether the last line is in a fence."""
    return sum(line.startswith("```") for line in lines) % 2 == 1


def without_head(text: str) -> str:
    """Returns YAML without the comment that begins it."""
    lines = text.splitlines()
    while lines and (lines[0].startswith("#") or not lines[0].strip()):
        lines.pop(0)
    return "\n".join(lines) or "# changes nothing"


def programs() -> list[str]:
    """Returns the modules of the entry points, in the order of pyproject.toml."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    return list(dict.fromkeys(target.partition(":")[0] for target in scripts.values()))


def commands_page() -> str:
    """Returns the page with the --help of every entry point."""
    parts = ["# Commands", "What each command prints with `--help`."]
    for module in programs():
        shown = subprocess.run(
            [sys.executable, "-m", module, "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        parts += [f"## {module}", f"```text\n{shown.stdout.strip()}\n```"]
    return "\n\n".join(parts) + "\n"


def packages() -> list[str]:
    """Returns the modules and packages directly in rl4p, without the entry points."""
    names = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    entries = {module.rpartition(".")[2] for module in programs()}
    return sorted(name for name in names - entries if not name.startswith("_"))


def python_page(name: str) -> str:
    """Returns the page of a package, which mkdocstrings fills from its docstrings."""
    submodules = str((PACKAGE / name).is_dir()).lower()
    options = f"    options:\n      show_submodules: {submodules}\n"
    return f"---\ntitle: rl4p.{name}\n---\n\n::: rl4p.{name}\n{options}"


def python_index() -> str:
    """Returns the page that lists the packages with the first line of their docstrings."""
    rows = [
        (f"[`rl4p.{name}`]({name}.md)", first_sentence(of_module(f"rl4p.{name}")))
        for name in packages()
    ]
    return "\n\n".join(
        [
            "# Python",
            "The packages, made from their docstrings. Suffixes of array names give dimensions: "
            "P prompts, G samples of a prompt, B sequences, T tokens, V vocabulary.",
            table(("package", "contents"), rows),
        ]
    )
