"""The words of the commands: one grammar and one reader for every command that reads a run.

    python -m rl4p.COMMAND [PATH] [KEY=VALUE ...] [--config-dir DIR]

A word is KEY=VALUE. A `Grammar` describes the words of one command by a dataclass; the reader, the
hints and the shell completion all take them from there. A path without a key stands for `run` or
`file`. Every other word is an override of the configuration, in the grammar of
`python -m rl4p.train`, if the command takes any.

`rl4p.train` has none of these words: it continues a run, with `resume=FOLDER`. A command
that writes files replaces only what an earlier command wrote.
"""

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Generic, Literal, TypeVar

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from rl4p.base.errors import InputError, report
from rl4p.base.terminal import VisibleStream, make_logs_visible
from rl4p.command.completion import shell_completion
from rl4p.configuration.bounds import Natural
from rl4p.configuration.capability import refuse_secrets
from rl4p.configuration.composition import one_line
from rl4p.configuration.override_errors import refuse_arguments, without_spaces
from rl4p.configuration.suggestions import did_you_mean, write
from rl4p.configuration.targets import check_arguments, type_hints
from rl4p.runs.folder import LATEST, refuse_address

Options = TypeVar("Options")


PLACEHOLDERS = {"run": "FOLDER", "out": "PATH"}  # for the values of words that are missing
# Words that a user may try, and the word of this grammar for the same thing.
INSTEAD = {
    **dict.fromkeys(("resume", "runs", "sweep", "folder"), "run"),
    **dict.fromkeys(("responses", "input"), "file"),
    **dict.fromkeys(("html", "output", "output_dir", "out_dir"), "out"),
    "steps": "step",
    "ema": "average",
    "uri": "tracker.uri",
    "register": "tracker.register",
}
SEVERAL = tuple[str, ...]  # the type of a `run` that takes several folders


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The words that select the parameters of a run, which --help explains."""

    run: str | None = None
    step: Natural | None = None
    checkpoint: Literal["best"] | None = None
    average: bool = False

    def __post_init__(self) -> None:
        if self.run is None and (self.chosen is not None or self.average):
            raise InputError(
                "step, checkpoint and average select parameters of a run: add run=FOLDER."
            )
        if self.step is not None and self.checkpoint is not None:
            raise InputError("step and checkpoint are both given: choose one of them.")

    @property
    def chosen(self) -> int | Literal["best"] | None:
        """The chosen checkpoint: its step, `best`, or None for the newest."""
        return self.checkpoint or self.step


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The words of a command that composes the configuration of a run anew, such as rl4p.plan."""

    run: str | None = None  # the folder of a run
    out: str | None = None  # the folder for the result
    estimate: bool = False  # whether to estimate in place of compiling; short for `plan.estimate`


@dataclass(frozen=True, kw_only=True)
class RegradeOptions:
    """The words of rl4p.regrade, which --help explains."""

    out: str
    file: str | None = None
    run: str | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        if (self.file is None) == (self.run is None):
            raise InputError("Give run=FOLDER or file=FILE: one of them has the responses.")
        if self.run is not None and self.task is not None:
            raise InputError("The samples of a run have tasks: leave task out.")


@dataclass(frozen=True, kw_only=True)
class Grammar(Generic[Options]):
    """The grammar of a command."""

    name: str  # its name, such as export
    kind: type[Options]  # the dataclass of its words
    # Dataclasses by word. `server.model=NAME` sets a field of the section `server`, and
    # `server=URL` sets its first field.
    sections: Mapping[str, type] = field(default_factory=dict)
    # Whether other words are overrides of the configuration; otherwise they are refused.
    composes: bool = False

    def words(self) -> list[str]:
        """Returns its own words, each with its equal sign."""
        own = []
        for word in type_hints(self.kind):
            inner = type_hints(self.sections[word]) if word in self.sections else ()
            own += [f"{word}=", *(f"{word}.{name}=" for name in inner)]
        return own


PLAN = Grammar(name="plan", kind=Reading, composes=True)
REGRADE = Grammar(name="regrade", kind=RegradeOptions, composes=True)


@dataclass(frozen=True, kw_only=True)
class CommandLine(Generic[Options]):
    """A command line that was read."""

    options: Options  # the words of the command
    overrides: list[str]  # the other words, which change the configuration
    config_dir: str | None = None  # the folder with further YAML files, if there is one


def run_command(
    command: Grammar[Any] | str,
    description: str,
    job: Callable[[list[str]], Any],
    arguments: Sequence[str] | None = None,
) -> int:
    """Runs a command with its arguments, and returns the exit code.

    Args:
      command: its grammar, or MODULE:NAME of it, which only the completion imports.
      job: called with the arguments. It imports JAX itself, so that --help is fast.
    """
    prepare_process()
    lines = sys.argv[1:] if arguments is None else list(arguments)
    if {"-h", "--help"} & set(lines):
        try:
            print(description.strip(), flush=True)
        except BrokenPipeError:  # of `--help | head`; otherwise Python prints it again at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    try:
        if lines[:1] in (["-sc"], ["--shell-completion"]):
            grammar = resolve_name(command) if isinstance(command, str) else command
            keys = grammar.composes
            flags = ["--help", *(["--config-dir"] if keys else [])]
            with redirect_stdout(VisibleStream(sys.stdout)):
                shell_completion(
                    grammar.name, lines[1:], own=grammar.words(), flags=flags, keys=keys
                )
        else:
            refuse_secrets(lines)
            job(lines)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - `report` prints all
        return report(error)
    return 0


def read(arguments: Sequence[str], command: Grammar[Options]) -> CommandLine[Options]:
    """Reads the arguments of a command."""
    hints = type_hints(command.kind)
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    keys = {old: new for old, new in INSTEAD.items() if new.partition(".")[0] in hints}
    parser.error = partial(refuse_arguments, list(arguments), keys=keys)
    if command.composes:
        parser.add_argument("--config-dir", "-cd")
    parser.add_argument("words", nargs="*")
    given = parser.parse_intermixed_args(list(arguments))
    options, overrides = options_of(given.words, command)
    config_dir = given.config_dir if command.composes else None
    return CommandLine(options=options, overrides=overrides, config_dir=config_dir)


def options_of(words: Sequence[str], command: Grammar[Options]) -> tuple[Options, list[str]]:
    """Returns the options among some words, and the other words."""
    owner, sections, hints = f"rl4p.{command.name}", command.sections, type_hints(command.kind)
    tree: dict[str, Any] = {}
    others = []
    for word in with_keys(words, hints, composes=command.composes):
        key, equals, text = word.partition("=")
        first, _, inner = key.partition(".")
        if first not in hints or key.endswith("."):
            known = INSTEAD.get(key)
            if known is not None and known.partition(".")[0] in hints:
                instead = [f"{known}={text or '...'}"]
                raise InputError(write(f"{key} is not a word of {owner}", instead))
            others.append(word)
            continue
        if not equals:
            raise InputError(f"{word} is not KEY=VALUE: write {word}=VALUE.")
        node, types, field = tree, hints, first
        if first in sections:
            types = type_hints(sections[first])
            node, field = tree.setdefault(first, {}), inner or next(iter(types))
        elif inner:
            raise InputError(f"{key} does not exist: {first} is a value and has no keys.")
        if field in node:
            raise InputError(f"{key} is given twice: give it once.")
        node[field] = parsed(word, text, types.get(field))
        if key == "out":
            refuse_address(key, text)
    if not command.composes:
        tree |= dict.fromkeys(word.partition("=")[0] for word in others)
    for section in sections.keys() & tree.keys():
        tree[section] = build(tree[section], sections[section], section, f"{section} ({owner})")
    return build(tree, command.kind, "", owner), others if command.composes else []


def with_keys(words: Sequence[str], hints: Mapping[str, Any], *, composes: bool) -> list[str]:
    """Returns the words with the key of each path that has none: `file` of a file, or else `run`.

    Several paths become one value if the command takes several runs.
    """
    paths = [word for word in words if is_path(word, hints)]
    if len(paths) > 1 and hints.get("run") == SEVERAL:
        folders = yaml.safe_dump(paths, default_flow_style=True, width=float("inf"))
        return [f"run={folders.strip()}", *(word for word in words if word not in paths)]
    keyed = []
    for index, word in enumerate(words):
        if word in paths:
            is_file = "file" in hints and Path(word).expanduser().is_file()
            keyed.append(f"{'file' if is_file else 'run'}={word}")
        elif composes or "=" in word or word in hints:
            keyed.append(word)
        else:
            if joined := without_spaces(words, index):
                raise InputError(write("KEY=VALUE must not contain spaces", joined))
            raise InputError(f"{word} is neither KEY=VALUE nor a path that exists; see --help.")
    return keyed


def is_path(word: str, hints: Mapping[str, Any]) -> bool:
    """Returns whether a word is a path without a key; a folder's name may have an equal sign."""
    key, equals, _ = word.partition("=")
    if equals:
        return key.partition(".")[0] not in hints and Path(word).expanduser().exists()
    if word in hints or (word[:1] in "~+" and word[:2] != "~/"):
        return False
    return word == LATEST or "/" in word or Path(word).exists()


def parsed(word: str, text: str, hint: Any) -> Any:
    """Returns the value of a word: a text as it stands, anything else in Hydra's grammar.

    Several folders are a list such as A,B or [A,B]; quotes protect commas: A,'B,C'.
    """
    if hint == SEVERAL:
        if text and Path(text).expanduser().exists():
            return [text]
        try:  # this loader keeps numbers and dates as text
            names = yaml.load(text if text.startswith("[") else f"[{text}]", Loader=yaml.BaseLoader)
        except yaml.YAMLError:
            names = None
        if not names or not isinstance(names, list) or not all(isinstance(x, str) for x in names):
            raise InputError(f"{word} is not a list of folders such as A,B or [A,B].")
        return names
    if hint in (str, str | None):
        quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
        text = text[1:-1] if quoted else text
        if not text:
            raise InputError(f"{word} has no value.")
        return None if text == "null" and hint == (str | None) else text
    try:
        override = OverridesParser.create().parse_override(word)
    except HydraException as error:
        reason = one_line(error)
        raise InputError(f"{word} cannot be read as KEY=VALUE: {reason}") from error
    if override.is_sweep_override():
        raise InputError(f"{word} has several values, but takes one.")
    return override.value()


def build(tree: Mapping[str, Any], kind: type[Options], key: str, owner: str) -> Options:
    """Returns the options that a tree describes, after checking names and types.

    Args:
      key: the key of the tree, for error messages; "" for the root.
      owner: what takes the options, for error messages.
    """
    required: list[str] = [
        field.name
        for field in fields(kind)  # pyright: ignore[reportArgumentType]
        if field.default is MISSING and field.default_factory is MISSING
    ]
    if not key and not set(required) <= tree.keys() and tree.keys() <= type_hints(kind).keys():
        words = [f"{name}={PLACEHOLDERS.get(name, '...')}" for name in required]
        needs = "needs them" if len(words) > 1 else "needs it"
        raise InputError(f"Give {' and '.join(words)}: {owner} {needs}; see --help.")
    check_arguments(key, tree, kind, owner)
    return kind(**{name: tuple(x) if isinstance(x, list) else x for name, x in tree.items()})


def refuse_without_effect(
    lines: Sequence[str],
    keys: Collection[str],
    command: Grammar[Any],
    instead: Mapping[str, str] | None = None,
) -> None:
    """Checks that each override has a key that acts on the command.

    Args:
      keys: the keys that act; of the root, each with all keys below it.
      instead: what to write instead of a key.
    """
    for line in lines:
        group, _, package = line.partition("=")[0].lstrip("+~").partition("@")
        key = package or group  # term@reward.terms.NAME changes the reward
        root = key.partition(".")[0]
        if root in keys or key in keys or ("=" not in line and line[:1] != "~"):
            continue  # a word without an equal sign is refused when it is parsed
        hint = did_you_mean(key, [*(field.name for field in fields(command.kind)), *keys])
        if root in (instead or {}):
            hint = f": {(instead or {})[root]}"
        raise InputError(
            f"{line} has no effect on rl4p.{command.name}{hint or ': leave it out'} (of the "
            f"configuration it takes {', '.join(keys)})."
        )


def prepare_process() -> None:
    """Prepares the streams, the log and the import path of a process for a command."""
    # By default Python raises UnicodeEncodeError for characters that the encoding of a stream
    # lacks: for Chinese on an ASCII terminal, and for a lone surrogate on every terminal.
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    make_logs_visible()
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)  # for the user's own modules; a console script lacks this entry


BEGINNING = 2048  # bytes of a page that are searched for its generator


def refuse_other_file(
    out: Path, command: str, made: Callable[[Path], bool], *, file: Path | None = None
) -> None:
    """Refuses to replace a file that is no earlier result of a command. An empty file is none.

    Args:
      out: the value of `out=`.
      made: returns whether the command made a file.
      file: the file, if `out` is not the file itself.

    Raises:
      InputError: it is a folder, no regular file, not readable, or a file of something else.
    """
    path = out if file is None else file
    what, another = (f"out={out}", "a file") if file is None else (f"out={out}: {file}", "another")
    try:
        if path.is_dir():
            raise InputError(f"{what} is a folder: name {another}.")
        if not path.exists():
            return
        if not path.is_file():
            raise InputError(f"{what} is a device or a pipe: name {another}.")
        theirs = path.stat().st_size > 0 and not made(path)
    except OSError as error:
        raise InputError(f"{what} cannot be read: {error.strerror}: name another.") from None
    if theirs:
        raise InputError(f"{what} exists and was not made by rl4p.{command}: name another.")


def is_page_of(command: str) -> Callable[[Path], bool]:
    """Returns a function that says whether a file is a page of a command."""
    mark = f'<meta name="generator" content="rl4p.{command}">'.encode()

    def made(path: Path) -> bool:
        with path.open("rb") as file:
            return mark in file.read(BEGINNING)

    return made


def is_document_with(*keys: str) -> Callable[[Path], bool]:
    """Returns a function that says whether a file is a JSON object with some keys."""

    def made(path: Path) -> bool:
        try:
            value = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) and value.keys() >= set(keys)

    return made
