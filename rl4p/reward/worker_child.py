"""The program of a worker process (`workers.py`): it calls one function, item by item.

It imports nothing but the standard library and the module of the function. Requests and replies are
lines of JSON. The reply to an item is ``{"result": ...}`` or ``{"error": "..."}``.
"""

import importlib
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator
from typing import Any

GRACE = 2.0  # seconds after the deadline, until a worker whose parent is gone ends itself
LOOK_FOR_PARENT = 5.0  # seconds


def serve(function: str, seconds: float, memory_bytes: int) -> None:
    """Answers requests until there are no more, or until the memory has grown too much.

    Args:
      function: ``module:name``; called with the JSON value of a request, it returns another.
      seconds: the deadline of an item. The parent enforces it.
      memory_bytes: the most address space of this process.
    """
    if sys.platform == "linux":  # other systems refuse this limit
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # The function may print or read: it gets other files than the two pipes.
    requests, replies = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        module, _, name = function.partition(":")
        call = getattr(importlib.import_module(module), name)
    except Exception as error:  # noqa: BLE001 the parent reports it
        send(replies, {"failed": f"{type(error).__name__}: {error}"})
        return
    os.dup2(null, 2)  # until here, errors of the start went to a file of the parent
    send(replies, {"ready": True})
    # A loop in C lets no Python code of this process run, so the deadline is the parent's to
    # enforce. If the parent is gone, this timer ends the process instead: SIGALRM kills it.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for line in lines(requests):
        signal.setitimer(signal.ITIMER_REAL, seconds + GRACE)
        reply = answer(call, line)
        signal.setitimer(signal.ITIMER_REAL, 0)
        last = memory() > memory_bytes / 2  # a later item would pay for the earlier ones
        send(replies, reply | ({"last": True} if last else {}))
        if last:
            return


def answer(call: Any, line: bytes) -> dict[str, Any]:
    """Returns the reply to one request. An exception becomes an error, and the process goes on."""
    try:
        return {"result": json.loads(json.dumps(call(json.loads(line))))}
    except MemoryError:
        return {"error": "it needs too much memory", "last": True}
    except Exception as error:  # noqa: BLE001 whatever a text makes of a library
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def lines(file: int) -> Iterator[bytes]:
    """Yields the lines of a pipe until it is closed or the parent is gone."""
    parent, held = os.getppid(), bytearray()
    while os.getppid() == parent:
        # The pipe stays open if another process holds the parent's end, so look from time to time.
        if not select.select([file], [], [], LOOK_FOR_PARENT)[0]:
            continue
        part = os.read(file, 1 << 16)
        if not part:
            return
        held += part
        while (end := held.find(b"\n") + 1) > 0:
            yield bytes(held[:end])
            del held[:end]


def send(file: int, reply: dict[str, Any]) -> None:
    """Writes a reply as one line."""
    line = memoryview(json.dumps(reply).encode() + b"\n")
    while line:
        line = line[os.write(file, line) :]


def memory() -> int:
    """Returns the bytes of this process's address space.

    Without /proc, as in a sandbox, these are the most bytes of memory that it has used so far.
    """
    try:
        with open("/proc/self/statm", "rb") as file:  # noqa: PTH123 pathlib is not imported here
            return int(file.read().split()[0]) * resource.getpagesize()
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
