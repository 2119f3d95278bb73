"""The program in a sandbox (`sandbox.py`). It imports nothing but the standard library.

    mode      action
    program   runs the code as a script
    solution  runs the code, then serves calls of what the code has defined
    tests     runs test code, in which the names that the solution has defined call the solution
    probe     says that a sandbox can be made

A solution and its tests are two processes, each in a sandbox of its own, with nothing between them
but plain values in JSON. So the solution sees no expected value, and nothing in it, such as an
object that equals everything, decides a test.
"""

import ast
import builtins
import importlib
import json
import os
import resource
import sys
from typing import Any

PLAIN = (type(None), bool, int, float, str)
LONGEST = 1 << 22  # characters of a message


def main(settings: str) -> None:
    """Limits this process, and runs a mode.

    Args:
      settings: JSON: ``mode``; ``memory`` in bytes, ``seconds`` and ``file_bytes``, the limits; and
        the arguments of the function of the mode.
    """
    options = json.loads(settings)
    mode, memory, seconds = options.pop("mode"), options.pop("memory"), options.pop("seconds")
    if sys.platform == "linux":  # other systems refuse this limit
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))
    resource.setrlimit(resource.RLIMIT_FSIZE, (options["file_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    del options["file_bytes"]
    {"program": program, "solution": solution, "tests": tests, "probe": probe}[mode](**options)


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
    run(source, {"__name__": "__main__"})


def run(source: str, names: dict[str, Any]) -> None:
    # In a module of its own, so that the code can be found by name (dataclasses look there).
    module = type(sys)(names["__name__"])
    sys.modules[module.__name__] = module
    names.update({"__builtins__": builtins})
    module.__dict__.update(names)
    exec(compile(source, "<response>", "exec", dont_inherit=True), module.__dict__)
    names.update(module.__dict__)


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
    source, names = text(code), {"__name__": "solution"}
    send(replies, {"started": True})
    try:
        run(source, names)
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
    args = [plain(each, held) for each in request.get("args", [])]
    named = {key: plain(each, held) for key, each in request.get("named", {}).items()}
    if action == "call":
        value = target(*args, **named)
    elif action == "attribute":
        value = getattr(target, *args)
    else:
        actions = {"item": lambda x, i: x[i], "length": len, "text": str, "form": repr}
        value = {**actions, "iterator": iter, "next": next, "set item": set_item}[action](
            target, *args
        )
    return {"value": packed(value, held), "args": [packed(each, held) for each in args]}


def set_item(target: Any, key: Any, value: Any) -> None:
    target[key] = value


# --- the tests ---


def tests(code: int, requests: int, replies: int) -> None:
    """Runs tests and writes to file 1 whether each has passed, a line for each.

    The first line is ``started``, when the solution's process has started. There are no more lines
    if its code has failed.

    Args:
      code: the file of ``{"setup": code, "tests": [code, ...], "all": bool}``. With ``all``, the
        first test that fails is the last one.
      requests, replies: the pipes of the solution.
    """
    out = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    task = json.loads(text(code))
    with os.fdopen(requests, "wb") as writer, os.fdopen(replies, "rb") as reader:
        link = Link(writer, reader)
        if not link.receive().get("started"):
            return
        os.write(out, b"started\n")
        names = link.receive().get("names", [])
        if not isinstance(names, list):
            return
        for test in task["tests"]:
            passed = passes(test, task["setup"], [str(name) for name in names], link)
            os.write(out, b"passed\n" if passed else b"failed\n")
            if task["all"] and not passed:
                return


def passes(test: str, setup: str, names: list[str], link: "Link") -> bool:
    """Returns whether a test, after the set-up, raises nothing."""
    space: dict[str, Any] = {"__name__": "tests"}
    try:
        tree = list(ast.walk(ast.parse(f"{setup}\n{test}")))
        prefixes = {name for x in tree if isinstance(x, ast.Attribute) for name in named(x.value)}
        for used in {name for x in tree for name in named(x)} - vars(builtins).keys():
            # Names of Python are never taken from the solution, which could then judge itself.
            if used in sys.stdlib_module_names and used in prefixes:
                space[used] = importlib.import_module(used)
            elif used in names:
                space[used] = Remote(used, link)
        exec(compile(setup, "<setup>", "exec", dont_inherit=True), space)
        exec(compile(test, "<test>", "exec", dont_inherit=True), space)
    except BaseException:  # noqa: BLE001 a test fails by any exception
        return False
    return True


def named(node: Any) -> list[str]:
    """Returns the name that a node is, if it is one."""
    return [node.id] if isinstance(node, ast.Name) else []


class SolutionError(Exception):
    """An exception in the solution that is none of Python's own."""


class Link:
    """The connection from the tests to the solution."""

    def __init__(self, writer: Any, reader: Any):
        self.writer = writer
        self.reader = reader

    def receive(self) -> dict[str, Any]:
        """Returns a message; {} if the solution has ended, or has sent something else."""
        line = self.reader.readline(LONGEST)
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return {}
        return message if isinstance(message, dict) else {}

    def request(self, of: Any, action: str, *args: Any, **named: Any) -> Any:
        """Returns the value of an action in the solution, or raises its exception.

        Lists, dicts and sets among the arguments get the content that the action has left in them.
        """
        message = {"of": of, "action": action, "args": [packed(each, None) for each in args]}
        message["named"] = {key: packed(each, None) for key, each in named.items()}
        send(self.writer, message)
        reply = self.receive()
        if "value" not in reply:
            known = getattr(builtins, str(reply.get("error")), SolutionError)
            ordinary = isinstance(known, type) and issubclass(known, Exception)
            raise (known if ordinary else SolutionError)(str(reply.get("message")))
        for before, after in zip(args, reply.get("args", []), strict=False):
            update(before, plain(after, self))
        return plain(reply["value"], self)


def update(before: Any, after: Any) -> None:
    if type(before) is not type(after) or before == after:
        return
    if isinstance(before, list):
        before[:] = after
    elif isinstance(before, dict | set):
        before.clear()
        before.update(after)


class Remote:
    """A function, class or object of the solution, as the tests see it.

    It equals nothing but itself: whether a test passes is never up to the solution.
    """

    def __init__(self, of: Any, link: Link):
        self.__dict__.update(_of=of, _link=link)

    def __call__(self, *args: Any, **named: Any) -> Any:
        return self._link.request(self._of, "call", *args, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._link.request(self._of, "attribute", name)

    def __getitem__(self, key: Any) -> Any:
        return self._link.request(self._of, "item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._link.request(self._of, "set item", key, value)

    def __len__(self) -> int:
        return self._link.request(self._of, "length")

    def __iter__(self) -> Any:
        return self._link.request(self._of, "iterator")

    def __next__(self) -> Any:
        return self._link.request(self._of, "next")

    def __str__(self) -> str:
        return self._link.request(self._of, "text")

    def __repr__(self) -> str:
        return self._link.request(self._of, "form")


# --- values between the two ---


def send(file: Any, message: Any) -> None:
    file.write(json.dumps(message).encode() + b"\n")
    file.flush()


def packed(value: Any, held: dict[int, Any] | None) -> Any:
    """Returns a value as JSON. A subclass becomes its plain class, with all that it overrides.

    Args:
      held: where to keep a value that is not plain; with None, it is refused.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, Remote):
        return {"held": value._of}
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
            return {kind.__name__: [packed(each, held) for each in kind.__iter__(value)]}
    if isinstance(value, dict):
        return {"dict": [[packed(k, held), packed(v, held)] for k, v in dict.items(value)]}
    if held is None:
        raise TypeError(f"A test cannot give the solution an object of {type(value).__name__}.")
    held[id(value)] = value
    return {"held": id(value)}


def plain(value: Any, at: Any) -> Any:
    """Returns the value of a JSON text that `packed` has made.

    Args:
      at: in the solution, the values that are held; in the tests, the `Link`.
    """
    if type(value) in PLAIN:
        return value
    ((kind, content),) = value.items()
    if kind == "held":
        if isinstance(at, Link):
            return Remote(content, at)
        return at[content]
    if kind == "dict":
        return {plain(k, at): plain(v, at) for k, v in content}
    if kind == "complex":
        return complex(*content)
    if kind in ("bytes", "bytearray"):
        return {"bytes": bytes, "bytearray": bytearray}[kind](content)
    kinds = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
    return kinds[kind](plain(each, at) for each in content)
