"""The program in a sandbox (`sandbox.py`). It imports nothing but the standard library.

`start` appends the text of `sandbox_tester.py`, which has the mode ``tests``.

    mode      action
    program   runs the code as a script
    solution  runs the code, then serves calls of what the code has defined
    tests     runs test code, in which the names that the solution has defined call the solution
    probe     says that a sandbox can be made

A solution and its tests are two processes, each in a sandbox of its own, with nothing between them
but plain values in JSON. So the solution sees no expected value, and nothing in it, such as an
object that equals everything, decides a test.
"""

import builtins
import contextlib
import json
import os
import resource
import site
import sys
from collections.abc import Callable
from typing import Any

PLAIN = (type(None), bool, int, float, str)


def main(settings: str) -> None:
    """Limits this process, and runs a mode.

    Args:
      settings: JSON: ``mode``; ``memory`` in bytes, ``seconds``, ``file_bytes`` and ``threads`` or
        None, the limits; and the arguments of the function of the mode.
    """
    options = json.loads(settings)
    mode, memory, seconds = options.pop("mode"), options.pop("memory"), options.pop("seconds")
    if sys.platform == "linux":  # other systems refuse this limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
    resource.setrlimit(resource.RLIMIT_FSIZE, (options.pop("file_bytes"),) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    if (threads := options.pop("threads")) is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (threads, threads))
    modes: dict[str, Any] = {"program": program, "solution": solution, "probe": probe}
    modes["tests"] = globals().get("tests")  # of the other part
    modes[mode](**options)


def probe() -> None:
    os.write(1, b"ready")


def program(code: int, ready: int) -> None:
    """Runs code as a script, with the files 0 and 1 that it was given.

    Args:
      code: the file of the code.
      ready: a pipe, which gets a byte before the code runs.
    """
    source = text(code)
    os.write(ready, b"!")
    os.close(ready)
    run(source, "__main__")


def run(source: str, name: str) -> dict[str, Any]:
    """Runs code as ``python3 program.py`` does, and returns the names that it defines.

    Args:
      name: the name of its module.
    """
    for define in (site.setquit, site.setcopyright, site.sethelper):  # -S leaves them out
        define()
    path = os.path.abspath("program.py")  # noqa: PTH100 pathlib is not imported here
    sys.argv[:] = ["program.py"]
    # In a module of its own, so that the code can be found by name (dataclasses look there).
    module = sys.modules[name] = type(sys)(name)
    module.__dict__.update(__builtins__=builtins, __file__=path)
    compiled = compile(source.removeprefix("\ufeff"), path, "exec", dont_inherit=True)
    frame, depth = sys._getframe(), 1  # 1: of `exec`
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    sys.setrecursionlimit(sys.getrecursionlimit() + depth)  # the code does not see these frames
    exec(compiled, module.__dict__)
    return module.__dict__


def text(file: int) -> str:
    """Returns the content of a file, and closes it."""
    with open(file, "rb") as opened:
        return opened.read().decode("utf-8", "surrogatepass")


# --- the solution ---


def solution(code: int) -> None:
    """Runs code and serves calls: requests come by file 0, replies go to file 1."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    source = text(code)
    send(replies, {"started": True})
    try:
        names = run(source, "solution")
    except BaseException as error:  # noqa: BLE001 whatever the code raises
        send(replies, {"error": type(error).__name__, "message": str(error)[:300]})
        return
    # Values that are not plain stay here, and the tests get their numbers. A value that is kept
    # also keeps its id, which Python would otherwise give to a new object.
    held: dict[int, Any] = {}
    send(replies, {"names": sorted(name for name in names if not name.startswith("__"))})
    for line in requests:
        try:
            reply = serve(json.loads(line), names, held)
            message = json.dumps(reply)
        except BaseException as error:  # noqa: BLE001 whatever the code raises
            message = json.dumps({"error": type(error).__name__, "message": str(error)[:300]})
        replies.write(message.encode() + b"\n")
        replies.flush()


def serve(request: dict[str, Any], names: dict[str, Any], held: dict[int, Any]) -> dict[str, Any]:
    """Returns the reply to one request: a value, and the arguments as the call has left them."""
    of, action = request["of"], request["action"]
    target = names[of] if isinstance(of, str) else held[of]
    args = [plain(each, held.__getitem__) for each in request.get("args", [])]
    named = {key: plain(each, held.__getitem__) for key, each in request.get("named", {}).items()}
    if action == "call":
        value = target(*args, **named)
    elif action == "attribute":
        value = getattr(target, *args)
    else:
        actions = {"item": lambda x, i: x[i], "length": len, "text": str, "form": repr}
        actions |= {"truth": bool, "kind": kind_of, "next": next, "set item": set_item}
        actions |= {"take": take}
        value = {**actions, "iterator": iter}[action](target, *args)

    def hold(value: Any) -> int:
        held[id(value)] = value
        return id(value)

    return {"value": packed(value, hold), "args": [packed(each, hold) for each in args]}


def kind_of(target: Any) -> str:
    """Returns what a value can do (`Items.kind`)."""
    if not hasattr(type(target), "__iter__"):
        return "indexed" if hasattr(type(target), "__getitem__") else "object"
    if hasattr(target, "keys"):
        return "mapping"
    measured = any(hasattr(type(target), name) for name in ("__len__", "__getitem__"))
    return "iterator" if not measured and iter(target) is target else "collection"


def take(iterator: Any, count: int) -> list[Any]:
    """Returns the next items. Not by `itertools.islice`, whose `iter` may begin anew."""
    items: list[Any] = []
    with contextlib.suppress(StopIteration):
        while len(items) < count:
            items.append(next(iterator))
    return items


def set_item(target: Any, key: Any, value: Any) -> None:
    target[key] = value


# --- values between the two ---


def send(file: Any, message: Any) -> None:
    file.write(json.dumps(message).encode() + b"\n")
    file.flush()


def packed(value: Any, hold: Callable[[Any], Any]) -> Any:
    """Returns a value as JSON. A subclass becomes its plain class, with all that it overrides.

    Args:
      hold: returns the number of a value that is not plain, or raises an exception.
    """
    if type(value) in PLAIN:
        return value
    plainly: Any = {int: int.__int__, float: float.__float__, str: str.__str__}
    for kind, convert in plainly.items():
        if isinstance(value, kind):
            return convert(value)
    if isinstance(value, bytes | bytearray):
        return {type(value).__name__: list(bytes(value))}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    collections: tuple[Any, ...] = (list, tuple, set, frozenset)
    for kind in collections:
        if isinstance(value, kind):
            return {kind.__name__: [packed(each, hold) for each in kind.__iter__(value)]}
    if isinstance(value, dict):
        return {"dict": [[packed(k, hold), packed(v, hold)] for k, v in dict.items(value)]}
    return {"held": hold(value)}


def plain(value: Any, held: Callable[[Any], Any]) -> Any:
    """Returns the value of a JSON text that `packed` has made.

    Args:
      held: returns the value of a number that the other process, or this one, has given.
    """
    if type(value) in PLAIN:
        return value
    ((kind, content),) = value.items()
    if kind == "held":
        return held(content)
    if kind == "dict":
        return {plain(k, held): plain(v, held) for k, v in content}
    if kind == "complex":
        return complex(*content)
    if kind in ("bytes", "bytearray"):
        return {"bytes": bytes, "bytearray": bytearray}[kind](content)
    kinds = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    return kinds[kind](plain(each, held) for each in content)
