"""Failures of code that is not of this package: a part of the user's own that raises or exits."""

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

from rl4p.configuration.targets import TRUSTED, join
from rl4p.errors import InputError, RunError, Stopped

LONGEST = 300  # characters of the message of an exception

Frames = Iterable[tuple[FrameType, int]]  # each with the number of its line, the outermost first


class Blame(NamedTuple):
    """The part of a configuration whose code a stack was in.

    Attributes:
      part: its key and its target.
      where: the innermost line of its own file.
    """

    part: str
    where: str


@contextmanager
def own_failures(config: DictConfig) -> Iterator[None]:
    """Turns the failures of the user's own code into errors of one sentence.

    An exception and `sys.exit` are raised again as a `RunError`, whose cause they are. Both name
    the part and the last line of its own file. `os._exit` ends the process as ever, but says so,
    with exit code 1: no job has finished that ends in this way.

    Raises:
      RunError: a part of the user's own raised an exception, or something called `sys.exit`.
    """
    parts = own_parts(OmegaConf.to_container(config))
    leave, process = os._exit, os.getpid()

    def leave_with_words(status: int) -> NoReturn:
        caller = sys._getframe(1)
        ours = module_of(caller).startswith("rl4p.")
        if os.getpid() == process and not ours:  # a child of a fork may end in this way
            found = blamed(list(traceback.walk_stack(caller))[::-1], parts)
            print(exit_told(f"os._exit({status})", found), file=sys.stderr, flush=True)
            status = RunError.exit_code
        leave(status)

    os._exit = leave_with_words
    try:
        yield
    except (InputError, RunError, Stopped, KeyboardInterrupt):
        raise
    except SystemExit as error:
        found = blamed(traceback.walk_tb(error.__traceback__), parts)
        raise RunError(exit_told(f"sys.exit({error.code!r})", found) + log_told()) from error
    except Exception as error:
        found = blamed(traceback.walk_tb(error.__traceback__), parts)
        if found is None:
            raise
        sentence = f"{found.part} raised {raised(error)} ({found.where})."
        raise RunError(sentence + log_told()) from error
    finally:
        os._exit = leave


def own_parts(tree: Any, key: str = "") -> dict[str, str]:
    """Returns the key of each target that is not of a package that is always trusted."""
    found: dict[str, str] = {}
    children = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
    for name, child in children:
        if name == "_target_" and str(child).partition(".")[0] not in TRUSTED:
            found[str(child)] = f"{found[child]} or {key}" if child in found else key
        elif isinstance(child, (Mapping, list)):
            for target, other in own_parts(child, join(key, name)).items():
                found[target] = f"{found[target]} or {other}" if target in found else other
    return found


def blamed(stack: Frames, parts: Mapping[str, str]) -> Blame | None:
    """Returns the part in whose code a stack is innermost; None if it is in none of them."""
    target, own_file, where = "", "", ""
    for frame, number in stack:
        file = frame.f_code.co_filename
        found = of_self(frame, parts)
        if found is None and file != own_file:  # a function of the file is called by its class
            found = of_module(frame, parts)
            if found is None:
                continue
        target, own_file = found or target, file
        line = linecache.getline(file, number).strip()
        where = f"{file}, line {number}" + f": {line}" * bool(line)
    return Blame(f"{parts[target]} ({target})", where) if target else None


def of_self(frame: FrameType, parts: Mapping[str, str]) -> str | None:
    """Returns the target of the object whose method a frame is; None if it is of no part."""
    code = frame.f_code
    if not code.co_argcount or module_of(frame).partition(".")[0] in TRUSTED:
        return None
    kinds = type(frame.f_locals.get(code.co_varnames[0])).__mro__
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in kinds]
    return next((name for name in names if name in parts), None)


def of_module(frame: FrameType, parts: Mapping[str, str]) -> str | None:
    """Returns the first target in the module of a frame."""
    module = module_of(frame)
    return next((name for name in parts if name.rpartition(".")[0] == module), None)


def module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def raised(error: Exception) -> str:
    """Returns the type of an exception and the first line of its message."""
    lines = str(error).strip().splitlines() or [""]
    said = f"{type(error).__name__}: {lines[0][:LONGEST]}".removesuffix(": ")
    if type(error).__module__.startswith("jax.") and "Tracer" in type(error).__name__:
        said += "; it is traced by JAX: use jax.numpy, and no `if` on values of arrays"
    return said


def exit_told(call: str, found: Blame | None) -> str:
    """Returns a sentence on a call that would have ended the process."""
    who = f"{found.part} called {call} ({found.where})" if found else f"The job called {call}"
    return f"{who}, so it did not finish: raise an exception in the place of this call."


def log_told() -> str:
    """Returns where the traceback is written, as one more sentence; "" if nowhere."""
    handlers = logging.getLogger().handlers
    files = [x.baseFilename for x in handlers if isinstance(x, logging.FileHandler)]
    return f" The traceback is in {files[-1]}." if files else ""
