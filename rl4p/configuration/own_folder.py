"""The folder of a user's own recipes: what they may use is asked for once, and remembered.

`trust=true` on the command line says that the recipes in the folder of `--config-dir` are this
user's own. From then on they read and write local paths without a word. Every address, command and
environment variable that they had at that start is remembered, and may be used at the same key
again. Another value is asked for again.

No file of the folder can say this, nor a copy of the folder. What is remembered lies beside the key
that signs runs, in $XDG_STATE_HOME/rl4p/trusted. Each line is a code of the folder and of one value
by that key (HMAC-SHA256): the file shows no value, and a line of somebody without the key counts
for nothing. Without that file, nothing is trusted.
"""

import os
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from rl4p.base.errors import InputError, reason_of
from rl4p.base.terminal import write
from rl4p.configuration.yaml_file import code, key_file, own_key

ITSELF = "folder"  # what is remembered of a folder whose values are all local


class OwnFolder:
    """The folder of `--config-dir`, and what this user has trusted its recipes with.

    Args:
      given: whether the command line has `trust=true`.
    """

    def __init__(self, folder: str, *, given: bool) -> None:
        self.folder, self.given = folder, given

    @cached_property
    def remembered(self) -> set[str]:
        """The codes of what was trusted, in this folder and in others."""
        try:
            return set(trusted_file().read_text("ascii").split())
        except (OSError, ValueError):
            return set()

    @property
    def is_known(self) -> bool:
        """Whether this user has said that the recipes are their own."""
        return self.given or self.holds(ITSELF)

    def holds(self, text: str) -> bool:
        """Returns whether this user has trusted the recipes with what a text describes."""
        return (found := self.code(text)) is not None and found in self.remembered

    def remember(self, named: Mapping[str, str]) -> None:
        """Trusts the recipes from now on with what texts describe, and says so.

        Args:
          named: by text, what the user is shown.
        """
        if (own := self.code(ITSELF)) is None:
            write(f"trust=true holds for this start alone: {key_file()} is no key.", sys.stderr)
            return
        new = {str(self.code(text)): name for text, name in named.items()}
        new = {each: name for each, name in new.items() if each not in self.remembered}
        lines = [each for each in (own, *new) if each not in self.remembered]
        if not lines:
            return
        path = trusted_file()
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
            with os.fdopen(descriptor, "w", encoding="ascii") as file:
                file.write("".join(f"{line}\n" for line in lines))
        except OSError as error:
            raise InputError(
                f"trust=true cannot be remembered in {path}: {reason_of(error)}."
            ) from error
        self.remembered.update(lines)
        names = ", ".join(dict.fromkeys(new.values()))
        uses = f", with {names}" if names else ""
        write(f"The recipes in {self.folder} are trusted from now on{uses} ({path}).", sys.stderr)

    def code(self, text: str) -> str | None:
        """Returns the code of a text for this folder, by the user's key; None without a key."""
        key = own_key()
        return None if key is None else code(key, str(Path(self.folder).resolve()), text)


def trusted_file() -> Path:
    """Returns the path of what is remembered, beside the user's key."""
    return key_file().with_name("trusted")
