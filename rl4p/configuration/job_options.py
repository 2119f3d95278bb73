"""Entry points that take options of their own beside overrides of the configuration.

Each argument is KEY=VALUE. A key of the entry point's options, such as `out`, belongs to it; every
other argument is an override, in the grammar of `python -m rl4p.train`.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rl4p.configuration.command_line import report
from rl4p.configuration.composition import one_line
from rl4p.configuration.targets import check_arguments, type_hints
from rl4p.errors import InputError

Options = TypeVar("Options")


def run_job(
    description: str, job: Callable[[list[str]], Any], arguments: Sequence[str] | None = None
) -> int:
    """Runs a job with the arguments of the command line, and returns the exit code.

    Args:
      description: the text that --help prints.
      job: called with the arguments. It imports JAX itself, so that --help is fast.
      arguments: None takes those of the process.
    """
    lines = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help", "help"} & set(lines):
        print(description.strip())
        return 0
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)  # for the user's own modules; a console script lacks this entry
    try:
        job(lines)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - `report` prints all
        return report(error)
    return 0


def split(
    lines: Sequence[str], kind: type[Options], sections: Mapping[str, type] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Divides arguments into the options of an entry point and overrides of the configuration.

    Args:
      kind: the dataclass of the options.
      sections: dataclasses by field name. `server.model=NAME` sets a field of the section
        `server`, and `server=URL` sets its first field.

    Returns:
      The options as a tree of values, and the overrides.

    Raises:
      InputError: an argument is not KEY=VALUE, or a key is given twice.
    """
    sections = sections or {}
    tree: dict[str, Any] = {}
    overrides = []
    for line in lines:
        key, equals, text = line.partition("=")
        name, _, inner = key.partition(".")
        hints = type_hints(kind)
        if name not in hints or key.endswith("."):
            overrides.append(line)
            continue
        if not equals:
            raise InputError(f"{line} is not of the form KEY=VALUE.")
        node = tree
        if name in sections:
            hints = type_hints(sections[name])
            node = tree.setdefault(name, {})
            name = inner or next(iter(hints))
        elif inner:
            raise InputError(f"{key} does not exist: {name} is a value and has no keys.")
        if name in node:
            raise InputError(f"{key} is given twice: give it once.")
        node[name] = parsed(line, text, hints.get(name))
    return tree, overrides


def parsed(line: str, text: str, hint: Any) -> Any:
    """Returns the value of an argument: a text as it stands, anything else in Hydra's grammar."""
    if hint in (str, str | None):
        quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
        text = text[1:-1] if quoted else text
        if not text:
            raise InputError(f"{line} has no value.")
        return None if text == "null" and hint == (str | None) else text
    try:
        override = OverridesParser.create().parse_override(line)
        if not override.is_sweep_override():
            return override.value()
    except HydraException as error:
        reason = one_line(error)
        raise InputError(f"{line} cannot be read as KEY=VALUE: {reason}") from error
    raise InputError(f"{line} has several values, but takes one.")


def build(tree: Mapping[str, Any], kind: type[Options], key: str, owner: str) -> Options:
    """Returns the options that a tree describes, after checking names and types.

    Args:
      key: the key of the tree, for error messages; "" for the root.
      owner: what takes the options, for error messages.

    Raises:
      InputError: a name is unknown or missing, or a value has a wrong type.
    """
    check_arguments(key, tree, kind, owner)
    return kind(**tree)
