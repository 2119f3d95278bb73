"""The part of the program in a sandbox that runs tests (`sandbox_child.py`)."""

import ast
import builtins
import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from rl4p.reward.sandbox_child import packed, plain, send, text

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
        for before, after in zip(args, reply.get("args", []), strict=False):
            update(before, plain(after, self.remote))
        return plain(reply["value"], self.remote)


def number_of(value: Any) -> Any:
    """Returns the number of an object of the solution.

    Raises:
      TypeError: it is the tests' own.
    """
    if isinstance(value, Remote):
        return value._of
    raise TypeError(f"A test cannot give the solution an object of {type(value).__name__}.")


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
            self.measured: int | None = None

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
        """Checks that a loop to the end had as many items as the object's length says.

        Raises:
          SolutionError: it had not.
        """
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
