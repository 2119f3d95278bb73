"""Errors for words of a command line that are not KEY=VALUE as Hydra reads it."""

import re
from collections.abc import Sequence
from pathlib import Path

from hydra.core.override_parser.types import Override

from rl4p.configuration.corrections import of_key, write
from rl4p.configuration.quoting import override, quoted, readable
from rl4p.errors import InputError

KEY = r"[+~]{0,2}[\w@/.-]+"


def unknown_flags(flags: Sequence[str], arguments: Sequence[str]) -> InputError | None:
    """Returns the error for flags with a value, such as ``--seed 1`` or ``--seed=1``, if any.

    Args:
      flags: the unknown flags as they were written.
      arguments: all arguments of the command line.
    """
    overrides = []
    for flag, after in zip(arguments, [*arguments[1:], "-"], strict=True):
        key, equals, value = flag.lstrip("-").partition("=")
        if not equals and not after.startswith("-") and "=" not in after:
            value = after
        if flag in flags and value:
            key = key.replace("-", "_")
            known = of_key(key, value)
            overrides += known.overrides if known else [readable(key, value)]
    if not overrides:
        return None
    return InputError(write(f"{' '.join(flags)} is no flag; options have no dashes", overrides))


def unreadable(
    lines: Sequence[str], index: int, reason: str, options: Sequence[Sequence[str]]
) -> InputError:
    """Returns the error for one override that Hydra cannot read.

    Args:
      lines: all overrides of the command line.
      index: the index of the override.
      reason: the message of Hydra's parser.
      options: the choices [GROUP=OPTION] whose option has the name of the line.
    """
    line = lines[index]
    problem = f"{line} cannot be read as KEY=VALUE"
    if joined := without_spaces(lines, index):
        return InputError(write("KEY=VALUE must not contain spaces", joined))
    key, equals, value = line.partition("=")
    if not equals:
        return bare_word(line, options)
    if value.startswith("~/"):
        expanded = override(key, str(Path(value).expanduser()))
        return InputError(write(f"{problem}, and the shell does not expand ~ in it", [expanded]))
    if value.startswith("=") or not re.fullmatch(KEY, key):
        if re.fullmatch(KEY, key.strip()) and (plain := value.strip("= ")):
            return InputError(write(problem, [f"{key.strip()}={plain}"]))
        return InputError(f"{problem}: {reason}")
    if value.startswith(("[", "{", "'", '"')):
        return InputError(f"{problem}: {reason}")
    why = "such a value needs quotes, inside quotes for the shell"
    return InputError(write(f"{problem} ({why})", [override(key, value)]))


def without_spaces(lines: Sequence[str], index: int) -> list[str] | None:
    """Joins the parts of an override that was written with spaces, such as `seed = 1`.

    Returns the joined override, after `-m` if it has several values. Returns None if the word at
    `index` is not part of such an override.
    """
    line, before, after = lines[index], lines[:index], lines[index + 1 :]
    if after and after[0].startswith("=") and "=" not in line:
        word = line + "".join(after[:2] if after[0] == "=" else after[:1])
    elif before and before[-1].endswith("=") and "=" not in line:
        word = before[-1] + line
    elif line.endswith(",") and "=" in line and after:
        word, rest = line, list(after)
        while word.endswith(",") and rest:
            word += rest.pop(0)
    else:
        return None
    return ["-m", word] if "," in word else [word]


def bare_word(word: str, options: Sequence[Sequence[str]]) -> InputError:
    """Returns the error for a word without an equal sign; `options` are choices of this name."""
    if word.lower() in ("help", "h", "?"):
        return InputError(write(f"{word} is not KEY=VALUE", ["--help"]))
    if word.lower() in ("multirun", "sweep"):
        return InputError(write(f"{word} is not KEY=VALUE", ["-m"]))
    if options:
        return InputError(write(f"{word} is not KEY=VALUE", *options))
    key, colon, value = word.partition(":")
    if colon and re.fullmatch(KEY, key) and value:
        return InputError(write(f"{word} is not KEY=VALUE", [readable(key, value.strip())]))
    return InputError(f"{word} is not KEY=VALUE: --help lists the keys.")


def several_values(override: Override) -> InputError:
    """Returns the error for a value with commas outside a sweep."""
    line, key = str(override.input_line), override.get_key_element()
    value = line.removeprefix(f"{key}=")
    if key == "trusted_targets":
        return InputError(write(f"{line} has several values", [f"{key}=[{value}]"]))
    problem = f"{line} has several values: add -m to sweep over them."
    if override.is_choice_sweep() and not value.startswith("choice("):
        problem = write(f"{problem} If they are one value", [quoted(key, value)])
    return InputError(problem)
