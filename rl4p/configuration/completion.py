"""Shell completion of the installed scripts, by Hydra's plugins for bash, zsh and fish.

    eval "$(rl4p-train -sc install=bash)"

prints a shell function and registers it for `rl4p-train`. At each press of Tab the function calls
`rl4p-train -sc query=bash` with the line in COMP_LINE, and offers the words that this prints.
"""

import io
import os
import re
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from itertools import pairwise
from pathlib import Path

from hydra._internal.hydra import Hydra
from hydra._internal.utils import get_args_parser

from rl4p.configuration.composition import CONFIG, Composer
from rl4p.configuration.folder import LATEST, newest_runs
from rl4p.configuration.quoting import command, override
from rl4p.errors import InputError

SHELLS = ("bash", "zsh", "fish")
# Flags of Hydra that `command_line.launch` refuses.
NOT_OFFERED = ("--config-path", "-cp", "--config-name", "-cn", "--experimental-rerun")


def shell_completion(name: str, conf: Path, arguments: Sequence[str]) -> None:
    """Installs or uninstalls the completion of a script, or prints the words for a line.

    Args:
      name: the name of the entry point.
      conf: the folder of the YAML files.
      arguments: install=SHELL, uninstall=SHELL or query=SHELL.

    Raises:
      InputError: the arguments are different, or the program does not run as an installed script.
        A shell completes the name of a command, and `python -m` has none of its own.
    """
    action, _, shell = arguments[0].partition("=") if len(arguments) == 1 else ("", "", "")
    if action not in ("install", "uninstall", "query") or shell not in SHELLS:
        shells = ", ".join(SHELLS)
        raise InputError(f"Shell completion: write -sc install=SHELL, with SHELL one of {shells}.")
    if Path(sys.argv[0]).suffix == ".py":
        raise InputError(
            "Only an installed script has shell completion, not python -m: write "
            f'eval "$(rl4p-{name} -sc {action}={shell})"'
        )
    if action != "query":
        Hydra(name, Composer(conf).loader).shell_completion(CONFIG, list(arguments))
        return
    try:
        with redirect_stderr(io.StringIO()):
            query(name, conf, arguments[0], os.environ.get("COMP_LINE", ""))
    except (Exception, SystemExit):  # noqa: BLE001 - a line in the making is often wrong: no words
        return


def query(name: str, conf: Path, argument: str, line: str) -> None:
    """Prints the words that may end a line."""
    words = line.split()
    last = "" if line.endswith(" ") else words[-1]
    folders = [after for word, after in pairwise(words) if word in ("--config-dir", "-cd")]
    folders += [word.partition("=")[2] for word in words if word.startswith("--config-dir=")]
    if last.startswith("-"):
        print(" ".join(flag for flag in flags() if flag.startswith(last)))
    elif last.startswith("resume=") and not last.startswith(("resume=/", "resume=.")):
        offered = [LATEST, *(str(folder) for folder in newest_runs())]
        lines = [command([override("resume", folder)]) for folder in offered]
        print(" ".join(word for word in lines if word.startswith(last)))
    else:
        given = [word for word in words if "=" in word and not word.startswith("-")]
        composer = Composer(conf, folders[-1] if folders else None, given)
        if placed := re.fullmatch(r"[+~]?([\w/]+)@[\w.]+=(\w*)", last):
            group, begun = placed.groups()
            key = last.removesuffix(begun)
            if argument.endswith("bash"):
                key = key.partition("@")[2]  # for Bash an @ ends a word
            found = [x for x in composer.catalogue.options(group) if x.startswith(begun)]
            print(" ".join(f"{key}{option}" for option in found))
            return
        Hydra(name, composer.loader).shell_completion(CONFIG, [argument])


def flags() -> list[str]:
    """Returns the flags of an entry point."""
    known = get_args_parser()._option_string_actions
    return sorted(flag for flag in known if flag.startswith("--") and flag not in NOT_OFFERED)
