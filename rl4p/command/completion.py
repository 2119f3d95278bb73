"""Shell completion of the installed scripts, by Hydra's plugins for bash, zsh and fish.

    eval "$(rl4p-train -sc install=bash)"

prints a shell function and registers it for `rl4p-train`. At each press of Tab the function calls
`rl4p-train -sc query=bash` with the line in COMP_LINE, and offers the words that this prints: the
words of the command (`commands.Grammar`), runs, files, and the keys of the configuration.
"""

import io
import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from itertools import pairwise
from pathlib import Path

from hydra.plugins.completion_plugin import CompletionPlugin

from rl4p.base.errors import InputError
from rl4p.configuration.composition import CONFIG, Composer
from rl4p.configuration.hydra_internals import Hydra
from rl4p.configuration.quoting import override
from rl4p.configuration.trust import CONF
from rl4p.runs.folder import LATEST, newest_runs

SHELLS = ("bash", "zsh", "fish")


def shell_completion(
    name: str,
    arguments: Sequence[str],
    *,
    conf: Path = CONF,
    own: Sequence[str] = (),
    flags: Sequence[str] = (),
    keys: bool = True,
) -> None:
    """Installs or uninstalls the completion of a script, or prints the words for a line.

    Args:
      arguments: install=SHELL, uninstall=SHELL or query=SHELL.
      own: the words of the command, such as run=.
      keys: whether it takes overrides of the configuration.
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
            line = os.environ.get("COMP_LINE", "")
            query(name, conf, arguments[0], line, own=own, flags=flags, keys=keys)
    except (Exception, SystemExit):  # noqa: BLE001 - a line in the making is often wrong: no words
        return


def query(
    name: str,
    conf: Path,
    argument: str,
    line: str,
    *,
    own: Sequence[str] = (),
    flags: Sequence[str] = (),
    keys: bool = True,
) -> None:
    """Prints the words that may end a line; the arguments are as in `shell_completion`."""
    words = line.split()
    last = "" if line.endswith(" ") else words[-1]
    key, equals, value = last.partition("=")
    separator = "\n" if argument.endswith("fish") else " "
    if last.startswith("-"):
        print(separator.join(flag for flag in flags if flag.startswith(last)))
        return
    if key in ("run", "resume") and equals and not value.startswith(("/", ".")):
        runs = [LATEST, *(str(folder) for folder in newest_runs())]
        lines = [shlex.quote(override(key, folder)) for folder in runs]
        print(separator.join(word for word in lines if word.startswith(last)))
        return
    if f"{key}=" in own and equals:
        files = CompletionPlugin.complete_files(value)
        print(separator.join(f"{key}={file}" for file in files))
        return
    print(separator.join(word for word in own if word.startswith(last)))
    if keys and (last or not own):
        complete_overrides(name, conf, argument, words, last, own)


def complete_overrides(
    name: str, conf: Path, argument: str, words: Sequence[str], last: str, own: Sequence[str]
) -> None:
    """Prints the overrides of the configuration that may end a line, as Hydra's plugins do."""
    folders = [after for word, after in pairwise(words) if word in ("--config-dir", "-cd")]
    folders += [word.partition("=")[2] for word in words if word.startswith("--config-dir=")]
    overrides = [
        word
        for word in words[1:]
        if "=" in word and not word.startswith("-") and f"{word.partition('=')[0]}=" not in own
    ]
    composer = Composer(conf, folders[-1] if folders else None, overrides)
    if placed := re.fullmatch(r"[+~]?([\w/]+)@[\w.]+=(\w*)", last):
        group, begun = placed.groups()
        key = last.removesuffix(begun)
        if argument.endswith("bash"):
            key = key.partition("@")[2]  # for Bash an @ ends a word
        options = [x for x in composer.loader.get_group_options(group) if x.startswith(begun)]
        print(" ".join(f"{key}{option}" for option in options))
        return
    if own:  # Hydra reads the line itself, and knows no other words
        ends = [last] if "=" not in last else []
        os.environ["COMP_LINE"] = " ".join([words[0], *overrides, *ends]) + " " * (not last)
    Hydra(name, composer.loader).shell_completion(CONFIG, [argument])
