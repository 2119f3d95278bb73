"""The options of a program that runs for each episode."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from rl4p.base.errors import InputError


def check_program(
    key: str, command: Sequence[str], folder: str | None, variables: Sequence[str]
) -> None:
    """Checks that a program can be started.

    Args:
      key: the configuration key that has `command`, `folder` and `variables`.
      command: the program and its arguments.
      folder: the folder that it runs in; None for the current one.
      variables: names of environment variables that it gets.

    Raises:
      InputError: there is no such program or folder, or a variable is not set.
    """
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"{key}.folder={folder} is not a folder.")
    program = command[0]
    place = str(Path(folder or ".").resolve() / program) if "/" in program else program
    if shutil.which(place) is None:
        raise InputError(f"{key}.command: there is no program {program}.")
    if missing := [name for name in variables if name not in os.environ]:
        raise InputError(f"{key}.variables: {missing[0]} is not set.")
