"""Files that a command replaces: its own earlier results, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

from rl4p.base.errors import InputError

BEGINNING = 2048  # bytes of a page that are searched for its generator


def refuse_other_file(
    out: Path, command: str, made: Callable[[Path], bool], *, file: Path | None = None
) -> None:
    """Refuses to replace a file that is no earlier result of a command. An empty file is none.

    Args:
      out: the value of `out=`.
      command: the name of the command, such as `regrade`.
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
