"""How the processes of a run find one another, and hear at once when one of them ends.

JAX would wait for a missing process without naming it, and end the others by an abort some minutes
after one has died. Here every process keeps a connection to the first, which closes with it.
"""

import atexit
import json
import os
import queue
import socket
import sys
import threading
import time
from contextlib import suppress
from types import TracebackType
from typing import Any

from rl4p.errors import InputError, RunError, Stopped

GRACE = 15.0  # seconds in which a process may end by itself after a failure
HEARD = 2.0  # the same, where it only heard of one
SILENCE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # then a host is gone
HELLO = 5.0  # seconds for who connects to say who it is


class RollCall:
    """The connections of one process; a context, within which all are there.

    Attributes:
      process: which one this is, from 0.
      processes: how many there are.
      failure: what to say of another that has failed; None as long as none has.
    """

    def __init__(self, process: int, processes: int) -> None:
        self.process, self.processes = process, processes
        self.failure: str | None = None
        self.exit_code = 0
        self.left = False
        self.peers: dict[int, socket.socket] = {}
        self.readers: list[threading.Thread] = []
        self.said: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.lock = threading.RLock()

    def gather(self, host: str, port: int, *, run: str, timeout: float) -> None:
        """Waits for all, at the first process's host and this port.

        Args:
          run: what must be the same on all of them.
          timeout: seconds.

        Raises:
          RunError: some did not come; they are named.
          InputError: those that came do not belong together.
        """
        until = time.monotonic() + timeout
        try:
            if self.process:
                self.find_first(host, port, {"process": self.process, "run": run}, until, timeout)
            else:
                self.await_others(port, run, until, timeout)
        except (InputError, RunError) as error:
            if self.process == 0:
                self.tell(failed=str(error))
            for connection in self.peers.values():
                connection.close()
            raise
        if self.process == 0:
            self.tell(start=self.processes)
        for peer, connection in self.peers.items():
            connection.settimeout(None)
            reader = threading.Thread(target=self.listen, args=(peer, connection), daemon=True)
            self.readers.append(reader)

    def await_others(self, port: int, run: str, until: float, timeout: float) -> None:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        try:
            server = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
        except OSError as error:
            raise InputError(
                f"mesh.coordinator: port {port}, one below it, cannot be used: {error.strerror}."
            ) from error
        with server:
            while missing := sorted(set(range(1, self.processes)) - self.peers.keys()):
                server.settimeout(max(until - time.monotonic(), 0.001))
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    names = ", ".join(map(str, missing))
                    raise RunError(
                        f"Process {names} of {self.processes} (from 0) did not come within "
                        f"{timeout:g} s (mesh.initialization_timeout)."
                    ) from None
                self.admit(keeping(connection), run)

    def admit(self, connection: socket.socket, run: str) -> None:
        hello = receive(connection, HELLO)
        peer = hello.get("process") if hello else None
        if hello is None or not isinstance(peer, int):
            connection.close()  # no process of ours: something that tries ports
            return
        if peer in self.peers or not 0 < peer < self.processes:
            problem = f"of {self.processes} processes, numbered from 0, two say that they are it"
            if peer not in self.peers and peer != 0:
                problem = f"there are {self.processes} processes, numbered from 0"
            send(connection, failed=f"mesh.process={peer}: {problem}.")
            connection.close()
            raise InputError(f"mesh.process={peer}: {problem}.")
        self.peers[peer] = connection
        if hello.get("run") != run:
            raise InputError(
                f"Process {peer} was started with another configuration than process 0: they may "
                "differ in mesh.process only."
            )

    def find_first(
        self, host: str, port: int, hello: dict[str, Any], until: float, timeout: float
    ) -> None:
        while True:
            try:
                connection = keeping(socket.create_connection((host, port), timeout=HELLO))
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise RunError(
                        f"Process 0 of {self.processes} did not answer process {self.process} at "
                        f"{host}:{port}, one below mesh.coordinator, within {timeout:g} s "
                        f"(mesh.initialization_timeout): {error}."
                    ) from error
                time.sleep(0.2)
        self.peers[0] = connection
        send(connection, **hello)
        answer = receive(connection, max(until - time.monotonic(), 0) + 2 * HELLO) or {}
        if "failed" in answer:
            raise RunError(answer["failed"])
        if answer.get("start") != self.processes:
            said = f"counts {answer['start']} processes" if "start" in answer else "ended"
            raise RunError(f"Process 0 {said}; this is process {self.process} of {self.processes}.")

    def agreed(self, value: Any) -> Any:
        """The first process's value, of what JSON can say; all must ask, in the same order."""
        if self.process == 0:
            self.tell(said=value)
            return value
        while self.failure is None:
            try:
                return self.said.get(timeout=0.2)
            except queue.Empty:
                continue
        raise RunError(self.failure)

    def blames(self, error: BaseException) -> RunError | None:
        """The error to show in place of one that is but a consequence of another process's end."""
        if isinstance(error, InputError | RunError | Stopped | KeyboardInterrupt | SystemExit):
            return None
        until = time.monotonic() + 2  # the news may be on its way
        while self.failure is None and time.monotonic() < until:
            time.sleep(0.05)
        return None if self.failure is None else RunError(self.failure)

    def __enter__(self) -> "RollCall":
        for reader in self.readers:
            reader.start()
        atexit.register(self.end)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, SystemExit):
            error = error.__cause__ if error.code else None
        if error is None or isinstance(error, Stopped):
            self.left = True
            self.tell(bye=True)
        else:
            self.confess(error)

    def confess(self, error: BaseException) -> None:
        """Tells the others of an error of this process's own."""
        with self.lock:
            if self.failure is not None:
                return
            self.exit_code = getattr(error, "exit_code", 1)
            known = isinstance(error, InputError | RunError)
            sentence = str(error) if known else f"{type(error).__name__}: {error}"
            self.failure = f"Process {self.process} of {self.processes} failed: {sentence}"
            self.tell(failed=self.failure)
        threading.Thread(target=self.end_late, args=(GRACE,), daemon=True).start()

    def listen(self, peer: int, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, suppress(OSError, ValueError):
            for line in lines:  # a reset, or half a line, is an end as any
                message = json.loads(line)
                if "bye" in message:
                    return
                if "failed" in message:
                    self.fail(message["failed"])
                    return
                self.said.put(message["said"])
        if self.left:  # and who has heard the good-bye is gone
            return
        self.fail(f"Process {peer} of {self.processes} has died: see what it printed.")

    def fail(self, sentence: str) -> None:
        with self.lock:
            if self.failure is not None:
                return
            self.failure, self.exit_code = sentence, RunError.exit_code
            if self.process == 0:
                self.tell(failed=sentence)
        grace = HEARD if self.process else GRACE  # the first has files to finish
        threading.Thread(target=self.end_late, args=(grace,), daemon=True).start()

    def end_late(self, grace: float) -> None:
        """The main thread may wait for ever for a process that is gone."""
        time.sleep(grace)
        print(self.failure, file=sys.stderr, flush=True)
        os._exit(self.exit_code)

    def end(self) -> None:
        """Before JAX's own end, which would wait for the others, and abort."""
        if self.failure is None:
            return
        if self.process == 0:  # JAX ends the others by an abort once this one is gone
            until = time.monotonic() + GRACE
            for reader in self.readers:
                reader.join(max(until - time.monotonic(), 0))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.exit_code)

    def tell(self, **message: Any) -> None:
        """Says it to those that this one is connected to; who is gone has its own thread."""
        for connection in self.peers.values():
            send(connection, **message)


def keeping(connection: socket.socket) -> socket.socket:
    """Notices by itself, in half a minute, that the other host does not answer any more."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in SILENCE.items():
        if hasattr(socket, name):  # Linux
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def send(connection: socket.socket, **message: Any) -> bool:
    """Whether it went out."""
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return False
    return True


def receive(connection: socket.socket, timeout: float) -> dict[str, Any] | None:
    """One message; None if none came in time, or something else did."""
    connection.settimeout(timeout)
    try:
        with connection.makefile("rb", buffering=0) as file:
            message = json.loads(file.readline(65536))
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None
