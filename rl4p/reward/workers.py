"""Worker processes for graders that may hang, crash or use too much memory.

A timeout by signal works in the main thread only, and a timeout by thread cannot stop a loop in C,
such as ``9**9**9``. A process can always be killed.
"""

import json
import logging
import os
import selectors
import site
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from rl4p.base.errors import RunError
from rl4p.distributed.control_group import Popen
from rl4p.distributed.counting import item_done
from rl4p.reward.sandbox import Kind, spawn

log = logging.getLogger(__name__)

START_SECONDS = 120.0  # until a worker has imported its function; seconds on an idle machine
LONGEST_REPLY = 1 << 20  # bytes
# The environment of workers. The rest may contain keys, and workers handle untrusted text.
KEPT_IN_SANDBOX = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONHASHSEED")
KEPT = (*KEPT_IN_SANDBOX, "HOME", "TMPDIR", "VIRTUAL_ENV")
PROGRAM = (
    "import json, sys; function, seconds, memory, sys.path[:] = json.loads(sys.argv[1]); "
    "from rl4p.reward.worker_child import serve; serve(function, seconds, memory)"
)


@dataclass(frozen=True, kw_only=True)
class Failed:
    """The result of an item that could not be graded."""

    reason: str  # what happened, as the end of a sentence: "it took longer than 5 seconds"


@dataclass(kw_only=True, eq=False)
class Worker:
    """One process, with the bytes on their way through its two pipes."""

    process: Popen
    errors: BinaryIO  # of its start
    due: float  # the deadline of its item, or of its start
    ready: bool = False  # whether it has imported its function
    item: int | None = None  # the index of the item it works on
    outgoing: memoryview = field(default_factory=lambda: memoryview(b""))  # the rest of a request
    incoming: bytearray = field(default_factory=bytearray)  # an incomplete reply

    def write(self) -> None:
        """Writes as much as the pipe takes. A large request must not wait for a stuck worker."""
        assert self.process.stdin is not None
        try:
            self.outgoing = self.outgoing[os.write(self.process.stdin.fileno(), self.outgoing) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.outgoing = memoryview(b"")  # it has ended, and `read` raises EOFError

    def read(self) -> Any:
        """Returns a reply as a JSON value, or None if it is not complete yet."""
        assert self.process.stdout is not None
        part = os.read(self.process.stdout.fileno(), 1 << 16)
        self.incoming += part
        if not part or len(self.incoming) > LONGEST_REPLY:
            raise EOFError
        if not part.endswith(b"\n"):
            return None
        line = bytes(self.incoming)
        self.incoming.clear()
        try:
            return json.loads(line)
        except (ValueError, RecursionError):
            raise EOFError from None

    def kill(self) -> None:
        self.process.close()
        self.errors.close()


class Workers:
    """A pool of persistent processes, each of which calls one function for one item at a time.

    An item that exceeds its deadline or the memory limit, or whose process dies, fails alone: its
    process is killed and replaced, and the other items keep their results. The processes start at
    the first call and end with this object, with this process (also if it is killed), or by
    `close`. Calls may come from any thread; they are served one after the other.

    Nothing but JSON passes between the processes. Outside a sandbox the function has the rights of
    this user: it may handle untrusted data, but must not run untrusted code (`sandbox.py`). In a
    sandbox, code that it runs can forge the results of its process, and nothing else.
    """

    def __init__(
        self,
        function: str,
        *,
        count: int,
        seconds: float,
        memory_bytes: int = 2**30,
        sandbox: Kind = "none",
        libraries: Sequence[str] = (),
    ):
        """Prepares a pool; no process is started yet.

        Args:
          function: ``module:name`` of a function from a JSON value to a JSON value. Its module
            should import little: each process imports it once.
          memory_bytes: the most address space of a process (on Linux).
          libraries: the modules and packages that the function imports, visible in a sandbox.
        """
        self.function = function
        self.count = count
        self.seconds = seconds
        self.memory_bytes = memory_bytes
        self.sandbox: Kind = sandbox
        self.libraries = tuple(libraries)
        self.restarts = 0  # of processes that an item has cost
        self.warned = False
        self.lock = threading.Lock()
        self.workers: list[Worker] = []
        self.starter = ThreadPoolExecutor(1)  # a sandbox ends with the thread that started it
        self.close = weakref.finalize(self, end, self.workers)

    def map(self, items: Sequence[Any]) -> list[Any]:
        """Returns the results of the function in the order of the items, or a `Failed` for each."""
        with self.lock:
            if not self.close.alive:
                raise RunError(f"The workers of {self.function} are closed.")
            results: list[Any] = [None] * len(items)
            waiting = deque(range(len(items)))
            try:
                while len(self.workers) < min(self.count, len(items)):
                    self.workers.append(self.start())
                while waiting or any(worker.item is not None for worker in self.workers):
                    for worker in list(self.workers):
                        if not waiting or not worker.ready or worker.item is not None:
                            continue
                        if worker.process.poll() is not None:  # died while it had nothing to do
                            self.replace(worker)
                            continue
                        worker.item = waiting.popleft()
                        item = json.dumps(items[worker.item]).encode()
                        worker.outgoing = memoryview(item + b"\n")
                        worker.due = time.monotonic() + self.seconds
                        worker.write()
                    self.advance(results)
            except BaseException:
                end(self.workers)  # a late reply would be taken for a reply of the next call
                raise
            return results

    def warn_once(self, results: Sequence[Any], verb: str) -> None:
        """Logs the first failures that occur; the metric reward/invalid counts all of them."""
        failed = [each for each in results if isinstance(each, Failed)]
        if failed and not self.warned:
            self.warned = True
            counts = len(failed), len(results)
            message = "%d of %d answers could not be %s, the first because %s."
            log.warning(message, *counts, verb, failed[0].reason)

    def start(self) -> Worker:
        """Starts a process, without waiting until it is ready."""
        settings = [self.function, self.seconds, self.memory_bytes, sys.path]
        kept = KEPT if self.sandbox == "none" else KEPT_IN_SANDBOX
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        # In a sandbox, what Python needs to import this package and the libraries: the folders of
        # Python's environment, the folder of each package and the file of each module. Not the
        # folder around them: it may be a project, with a file of keys.
        paths = [sys.prefix, *site.getsitepackages(), Path(__file__).parents[1]]
        if site.ENABLE_USER_SITE:
            paths.append(site.getusersitepackages())
        for spec in filter(None, map(find_spec, self.libraries)):  # the worker names a missing one
            if spec.submodule_search_locations is not None:
                paths += spec.submodule_search_locations
            elif spec.has_location and spec.origin is not None:
                paths.append(spec.origin)
        readable = [path for path in map(Path, paths) if path.exists()]
        errors: Any = tempfile.TemporaryFile()  # noqa: SIM115 `Worker.kill` closes it
        try:
            # A new program, not a copy of this process: JAX has threads, which a copy would lack.
            # Its own session keeps Ctrl-C for the run, which then closes the workers.
            process = self.starter.submit(
                spawn,
                self.sandbox,
                [sys.executable, "-c", PROGRAM, json.dumps(settings)],
                memory=self.memory_bytes,
                environment=environment | {"PYTHONDONTWRITEBYTECODE": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                readable=readable if self.sandbox == "bubblewrap" else (),
            ).result()
        except OSError as error:
            errors.close()
            raise RunError(f"The workers of {self.function} cannot be started: {error}.") from None
        assert process.stdin is not None
        os.set_blocking(process.stdin.fileno(), False)
        return Worker(process=process, errors=errors, due=time.monotonic() + START_SECONDS)

    def advance(self, results: list[Any]) -> None:
        """Waits for replies or the next deadline, and puts what it gets into `results`.

        A worker past its deadline is replaced, and the result of its item is a `Failed`.
        """
        with selectors.DefaultSelector() as selector:
            waited = [each for each in self.workers if each.item is not None or not each.ready]
            for worker in waited:
                selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # pyright: ignore[reportArgumentType]
                if worker.outgoing:
                    selector.register(worker.process.stdin, selectors.EVENT_WRITE, worker)  # pyright: ignore[reportArgumentType]
            due = min(worker.due for worker in waited)
            for key, events in selector.select(max(0.0, due - time.monotonic())):
                if key.data not in self.workers:
                    continue  # replaced a moment ago
                if events & selectors.EVENT_WRITE:
                    key.data.write()
                else:
                    self.receive(key.data, results)
        for worker in waited:
            if time.monotonic() >= worker.due and worker in self.workers:
                if not worker.ready:
                    raise RunError(
                        f"A worker of {self.function} was not ready after {START_SECONDS:g} "
                        "seconds."
                    )
                if worker.item is not None:
                    reason = f"it took longer than {self.seconds:g} seconds"
                    self.fail(worker, results, reason)

    def receive(self, worker: Worker, results: list[Any]) -> None:
        """Reads the reply of a worker."""
        try:
            reply = worker.read()
        except EOFError:
            if not worker.ready:
                worker.errors.seek(0)
                lines = worker.errors.read().decode(errors="replace").strip().splitlines()
                self.refuse_start(lines[-1][:300].rstrip(".") if lines else "it ended at once")
            self.fail(worker, results, "its process died")
            return
        if reply is None:
            return
        if not worker.ready:  # so far it has run only our code, so the message can be trusted
            if "failed" in reply:
                self.refuse_start(reply["failed"])
            worker.ready = True
            return
        is_reply = isinstance(reply, dict) and (
            isinstance(reply["error"], str) if "error" in reply else "result" in reply
        )
        if not is_reply:
            self.fail(worker, results, "its process wrote something else than a result")
            return
        assert worker.item is not None
        result = Failed(reason=reply["error"]) if "error" in reply else reply["result"]
        results[worker.item], worker.item = result, None
        item_done()
        if reply.get("last"):
            self.replace(worker)

    def refuse_start(self, reason: str) -> None:
        raise RunError(f"The workers of {self.function} cannot be started: {reason}.")

    def fail(self, worker: Worker, results: list[Any], reason: str) -> None:
        """Gives up the item of a worker, and replaces the worker."""
        assert worker.item is not None
        results[worker.item] = Failed(reason=reason)
        item_done()
        self.replace(worker)

    def replace(self, worker: Worker) -> None:
        """Starts a new process in the place of a worker. It gets ready while others work."""
        worker.kill()
        self.restarts += 1
        self.workers[self.workers.index(worker)] = self.start()


def end(workers: list[Worker]) -> None:
    """Kills all workers of a pool."""
    while workers:
        workers.pop().kill()
