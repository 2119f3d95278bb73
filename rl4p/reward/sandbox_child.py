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
import contextlib
import importlib
import json
import os
import resource
import site
import sys
from collections.abc import Callable, Iterator
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
    if mode == "probe":
        os.write(1, b"ready")
    else:
        {"program": program, "solution": solution, "tests": tests}[mode](**options)


def program(code: int, ready: int) -> None:
    """Runs code as a script, with the files 0 and 1 that it was given.

    Args:
      ready: a pipe, which gets a byte before the code runs.
    """
    source = text(code)
    os.write(ready, b"!")
    os.close(ready)
    run(source, "__main__")


def run(source: str, name: str) -> dict[str, Any]:
    """Runs code as ``python3 program.py`` does, and returns the names that it defines."""
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
    elif action == "set item":
        value, target[args[0]] = None, args[1]
    else:
        actions = {"item": lambda x, i: x[i], "length": len, "text": str, "form": repr}
        actions |= {"truth": bool, "kind": kind_of, "next": next, "take": take}
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


LONGEST = 1 << 22  # characters of a message


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
        values = [x.value for x in tree if isinstance(x, ast.Attribute)]
        prefixes = {x.id for x in values if isinstance(x, ast.Name)}
        names_used = {x.id for x in tree if isinstance(x, ast.Name)}
        for used in names_used - vars(builtins).keys():
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


class SolutionError(Exception):
    """An exception in the solution that is none of Python's own."""


class Link:
    """The connection from the tests to the solution."""

    def __init__(self, writer: Any, reader: Any):
        self.writer = writer
        self.reader = reader
        self.changes = 0  # actions that may have changed an object

    def remote(self, of: Any) -> "Remote":
        return Remote(of, self)

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
        if action in ("call", "attribute", "set item"):
            self.changes += 1
            for each in (*args, *named.values()):
                if isinstance(each, Remote):
                    each._items.used = True
        message = {"of": of, "action": action, "args": [packed(each, number_of) for each in args]}
        message["named"] = {key: packed(each, number_of) for key, each in named.items()}
        send(self.writer, message)
        reply = self.receive()
        if "value" not in reply:
            known = getattr(builtins, str(reply.get("error")), SolutionError)
            ordinary = isinstance(known, type) and issubclass(known, Exception)
            raise (known if ordinary else SolutionError)(str(reply.get("message")))
        for before, changed in zip(args, reply.get("args", []), strict=False):
            after = plain(changed, self.remote)
            if type(before) is not type(after) or before == after:
                continue
            if isinstance(before, list):
                before[:] = after
            elif isinstance(before, dict | set):
                before.clear()
                before.update(after)
        return plain(reply["value"], self.remote)


def number_of(value: Any) -> Any:
    """Returns the number of an object of the solution."""
    if isinstance(value, Remote):
        return value._of
    raise TypeError(f"A test cannot give the solution an object of {type(value).__name__}.")


class Remote:
    """A function, class or object of the solution, as the tests see it.

    It equals nothing but itself: whether a test passes is never up to the solution. Its items are
    those of a plain copy (`Items`).
    """

    def __init__(self, of: Any, link: Link):
        self.__dict__.update(_of=of, _link=link, _items=Items(of, link))

    def __call__(self, *args: Any, **named: Any) -> Any:
        self._items.used = True
        return self._link.request(self._of, "call", *args, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._items.used = True
        return self._link.request(self._of, "attribute", name)

    def __getitem__(self, key: Any) -> Any:
        return self._items.at(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._items.used = True
        self._link.request(self._of, "set item", key, value)

    def __len__(self) -> int:
        return self._items.length()

    def __bool__(self) -> bool:
        return self._items.truth()

    def __iter__(self) -> Any:
        return self if self._items.kind() == "iterator" else iter(self._items)

    def __next__(self) -> Any:
        return self._link.request(self._of, "next")

    def __str__(self) -> str:
        return self._link.request(self._of, "text")

    def __repr__(self) -> str:
        return self._link.request(self._of, "form")


class Items:
    """The items of an object of the solution, as a plain copy.

    Each item is read once, when a test first needs it. Length, items by number or key, and loops
    are all of this copy. So an object cannot claim a length that its items do not have, nor show
    other items to each check. If a test has used a method of the object, or has passed it to the
    solution, there is a new copy after each call.
    """

    def __init__(self, of: Any, link: Link):
        self.of, self.link, self.used = of, link, False
        self.what = ""
        self.changes = -1

    def kind(self) -> str:
        """Returns what the object is.

        Returns:
          ``collection``, ``mapping``; ``iterator``, which has no length; ``indexed``, with items by
          key and no loop of its own; or ``object``, without items.
        """
        self.what = self.what or str(self.link.request(self.of, "kind"))
        return self.what

    def renew(self) -> None:
        """Begins a new copy if there is none, or if the object may have changed."""
        changes = self.link.changes if self.used else 0
        if changes != self.changes:
            self.changes = changes
            self.read: list[Any] = []
            self.values: dict[Any, Any] = {}
            self.iterator: Any = None
            self.ended = False
            self.measured: int | None = None  # the length, once it was asked for

    def more(self, count: int = 1) -> bool:
        """Reads more items of a loop; returns whether there were any."""
        if self.ended:
            return False
        if self.kind() == "indexed":
            try:
                items = [self.value(len(self.read))]
            except IndexError:
                items = []
        elif self.kind() == "object":
            raise TypeError("The object has no items.")
        else:
            if self.iterator is None:
                self.iterator = self.link.request(self.of, "iterator")
            items = list(self.link.request(self.iterator._of, "take", count))
        self.read += items
        self.ended = not items
        self.check_length()
        return not self.ended

    def all(self) -> list[Any]:
        while self.more(1000):
            pass
        return self.read

    def value(self, key: Any) -> Any:
        """Returns the value of a key, which is read once."""
        name = repr(packed(key, number_of))  # a slice or a list has no hash
        if name not in self.values:
            self.values[name] = self.link.request(self.of, "item", key)
        return self.values[name]

    def __iter__(self) -> Iterator[Any]:
        self.renew()
        read, index = self.read, 0  # a later copy does not change this loop
        while index < len(read) or (read is self.read and self.more()):
            yield read[index]
            index += 1

    def length(self) -> int:
        self.renew()
        if self.measured is None:
            length = self.link.request(self.of, "length")  # raises if the object has none
            counted = self.kind() in ("collection", "mapping")
            self.measured = len(self.all()) if counted else int(length)
            self.check_length()
        return self.measured

    def check_length(self) -> None:
        """Checks that a loop to the end had as many items as the object's length says."""
        if self.ended and self.measured not in (None, len(self.read)):
            raise SolutionError("The length of the object is not the number of its items.")

    def truth(self) -> bool:
        if self.kind() in ("collection", "mapping", "indexed"):
            with contextlib.suppress(TypeError):  # it has no length
                return self.length() > 0
        return bool(self.link.request(self.of, "truth"))

    def at(self, key: Any) -> Any:
        """Returns the item of a number, a slice or a key."""
        self.renew()
        if self.kind() == "collection" and isinstance(key, int | slice):
            if isinstance(key, slice) or key < 0:
                return self.all()[key]
            while key >= len(self.read) and self.more():
                pass
            return self.read[key]
        if self.kind() == "mapping" and key not in self.all():
            raise KeyError(key)
        return self.value(key)
