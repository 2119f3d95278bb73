"""Failures in the code of users: a class named by a `_target_` of theirs raises or exits."""

import linecache
import logging
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from omegaconf import DictConfig, OmegaConf

from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.base.terminal import write
from rl4p.configuration.targets import TRUSTED, join

LONGEST = 300  # characters of the message of an exception

Frames = Iterable[tuple[FrameType, int]]  # each with the number of its line, the outermost first


class Place(NamedTuple):
    """The place of a failure in the code of a user.

    Attributes:
      part: the key and the target of the class.
      line: the innermost line of the stack in the file of the class.
    """

    part: str
    line: str


@contextmanager
def own_failures(config: DictConfig) -> Iterator[None]:
    """Turns the failures of the user's code into errors of one sentence.

    An exception and `sys.exit` become the cause of a `RunError`, which names the part and the last
    line in its file. `os._exit` still ends the process, but prints such a sentence and uses exit
    code 1, because the job has not finished.

    Raises:
      RunError: code of the user raised an exception, or some code called `sys.exit`.
    """
    parts = own_parts(OmegaConf.to_container(config))
    leave, process = os._exit, os.getpid()

    def leave_with_sentence(status: int) -> NoReturn:
        caller = sys._getframe(1)
        ours = module_of(caller).startswith("rl4p.")
        if os.getpid() == process and not ours:  # a child of a fork may end in this way
            place = place_of(list(traceback.walk_stack(caller))[::-1], parts)
            write(exit_sentence(f"os._exit({status})", place), sys.stderr)
            status = RunError.exit_code
        leave(status)

    os._exit = leave_with_sentence
    try:
        yield
    except (InputError, RunError, Stopped, KeyboardInterrupt):
        raise
    except SystemExit as error:
        place = place_of(traceback.walk_tb(error.__traceback__), parts)
        sentence = exit_sentence(f"sys.exit({error.code!r})", place)
        raise RunError(sentence + log_sentence()) from error
    except Exception as error:
        place = place_of(traceback.walk_tb(error.__traceback__), parts)
        if place is None:
            raise
        sentence = f"{place.part} raised {raised(error)} ({place.line})."
        raise RunError(sentence + log_sentence()) from error
    finally:
        os._exit = leave


def own_parts(tree: Any, key: str = "") -> dict[str, str]:
    """Returns the keys by target, without the targets of packages that are always trusted."""
    keys: dict[str, str] = {}
    children = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    for name, child in children:
        if name == "_target_" and str(child).partition(".")[0] not in TRUSTED:
            keys[str(child)] = f"{keys[child]} or {key}" if child in keys else key
        elif isinstance(child, (Mapping, list)):
            for target, other in own_parts(child, join(key, name)).items():
                keys[target] = f"{keys[target]} or {other}" if target in keys else other
    return keys


def place_of(stack: Frames, parts: Mapping[str, str]) -> Place | None:
    """Returns the innermost place of a stack in the code of a part; None if there is none."""
    target, own_file, place = "", "", ""
    for frame, number in stack:
        file = frame.f_code.co_filename
        owner = target_of_method(frame, parts)
        if owner is None and file != own_file:  # a function of the file is called by its class
            owner = target_of_module(frame, parts)
            if owner is None:
                continue
        target, own_file = owner or target, file
        line = linecache.getline(file, number).strip()
        place = f"{file}, line {number}" + f": {line}" * bool(line)
    return Place(f"{parts[target]} ({target})", place) if target else None


def target_of_method(frame: FrameType, parts: Mapping[str, str]) -> str | None:
    """Returns the target whose method runs in a frame; None if it is no method of a part."""
    code = frame.f_code
    if not code.co_argcount or module_of(frame).partition(".")[0] in TRUSTED:
        return None
    kinds = type(frame.f_locals.get(code.co_varnames[0])).__mro__
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in kinds]
    return next((name for name in names if name in parts), None)


def target_of_module(frame: FrameType, parts: Mapping[str, str]) -> str | None:
    """Returns the first target in the module of a frame; None if it has none."""
    module = module_of(frame)
    return next((name for name in parts if name.rpartition(".")[0] == module), None)


def module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def raised(error: Exception) -> str:
    """Returns the type of an exception and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{type(error).__name__}: {lines[0][:LONGEST]}".removesuffix(": ")
    if type(error).__module__.startswith("jax.") and "Tracer" in type(error).__name__:
        text += "; it is traced by JAX: use jax.numpy, and no `if` on values of arrays"
    return text


def exit_sentence(call: str, place: Place | None) -> str:
    """Returns the error message for a call that would have ended the process."""
    who = f"{place.part} called {call} ({place.line})" if place else f"The job called {call}"
    return f"{who}, so it did not finish: raise an exception instead of this call."


def log_sentence() -> str:
    """Returns a sentence with the file that has the traceback; "" if there is no such file."""
    handlers = logging.getLogger().handlers
    files = [x.baseFilename for x in handlers if isinstance(x, logging.FileHandler)]
    return f" The traceback is in {files[-1]}." if files else ""
