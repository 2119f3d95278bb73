"""Connections between the processes of a run, which report that a process has ended or is frozen.

JAX waits for a missing process without naming it, and aborts the others only minutes after a
process has died. Here every process keeps a connection to process 0. The connection closes when
either process ends. Over it both send heartbeats, which a frozen process does not.
"""

import atexit
import json
import math
import os
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any

from rl4p.base.errors import InputError, RunError, Stopped
from rl4p.base.terminal import write

GRACE = 15.0  # seconds in which a process may end by itself after a failure
GRACE_AFTER_REPORT = 2.0  # the same after process 0 has reported a failure of another process
REPORT_DELAY = 2.0  # seconds after which a failure of another process is printed, if none has ended
LAST_CALLS = 5.0  # seconds for the functions of `before_exit`
KEEPALIVE = {"TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}  # then the host is gone
IDENTIFY_TIMEOUT = 5.0  # seconds in which a new connection must identify itself


class Connections:
    """The connections of one process; a context manager for the time that all processes run.

    Processes are numbered from 0. One that sends no heartbeat for `heartbeat_timeout` seconds
    counts as frozen.
    """

    def __init__(self, process: int, processes: int, heartbeat_timeout: float = 60.0) -> None:
        self.process, self.processes = process, processes
        self.heartbeat_timeout = heartbeat_timeout
        # Called, in order, before this process ends itself because another one has failed.
        self.before_exit: list[Callable[[], object]] = []
        self.heard: dict[int, float] = {}  # the time of the newest message of each process
        self.failure: str | None = None  # the message about the first process that failed
        self.exit_code = 0
        self.finished = False
        self.peers: dict[int, socket.socket] = {}
        self.readers: list[threading.Thread] = []
        self.values: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.lock, self.sending = threading.RLock(), threading.Lock()

    def connect(self, host: str, port: int, *, run: str, timeout: float) -> None:
        """Waits until all processes have connected to process 0.

        Args:
          host, port: the address of process 0.
          run: a text that must be equal on all processes.

        Raises:
          RunError: some processes did not connect; names them.
          InputError: the processes do not belong to the same run.
        """
        until = time.monotonic() + timeout
        try:
            if self.process:
                hello = {"process": self.process, "run": run}
                self.find_process_0(host, port, hello, until, timeout)
            else:
                self.accept_others(port, run, until, timeout)
        except (InputError, RunError) as error:
            if self.process == 0:
                self.broadcast(failed=str(error))
            for connection in self.peers.values():
                connection.close()
            raise
        if self.process == 0:
            self.broadcast(start=self.processes)
        for peer, connection in self.peers.items():
            connection.settimeout(None)
            # A frozen process reads nothing: without a limit, sending to it could block for ever.
            limit = struct.pack("ll", math.ceil(self.heartbeat_timeout), 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
            reader = threading.Thread(target=self.listen, args=(peer, connection), daemon=True)
            self.readers.append(reader)

    def accept_others(self, port: int, run: str, until: float, timeout: float) -> None:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        try:
            server = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
        except OSError as error:
            raise InputError(
                f"Port {port}, one below mesh.coordinator, cannot be used: {error.strerror}."
            ) from error
        with server:
            while missing := sorted(set(range(1, self.processes)) - self.peers.keys()):
                server.settimeout(max(until - time.monotonic(), 0.001))
                try:
                    connection, _ = server.accept()
                except TimeoutError:
                    names = ", ".join(map(str, missing))
                    raise RunError(
                        f"Process {names} of {self.processes} (from 0) did not connect within "
                        f"{timeout:g} s (mesh.initialization_timeout)."
                    ) from None
                hello = receive(kept_alive(connection), IDENTIFY_TIMEOUT)
                peer = hello.get("process") if hello else None
                if hello is None or not isinstance(peer, int):
                    connection.close()  # not a process of this run, but perhaps a port scanner
                    continue
                if peer in self.peers or not 0 < peer < self.processes:
                    all_of_them = f"{self.processes} processes, numbered from 0"
                    problem = f"there are {all_of_them}"
                    if peer in self.peers or peer == 0:
                        problem = f"two of the {all_of_them}, have this number"
                    send(connection, failed=f"mesh.process={peer}: {problem}.")
                    connection.close()
                    raise InputError(f"mesh.process={peer}: {problem}.")
                self.peers[peer] = connection
                if hello.get("run") != run:
                    raise InputError(
                        f"The configurations of process {peer} and process 0 differ: only "
                        "mesh.process may differ."
                    )

    def find_process_0(
        self, host: str, port: int, hello: dict[str, Any], until: float, timeout: float
    ) -> None:
        while True:
            try:
                connection = kept_alive(
                    socket.create_connection((host, port), timeout=IDENTIFY_TIMEOUT)
                )
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise RunError(
                        f"Process 0 of {self.processes} did not answer process {self.process} at "
                        f"{host}:{port} (one below mesh.coordinator) within {timeout:g} s "
                        f"(mesh.initialization_timeout): {error}."
                    ) from error
                time.sleep(0.2)
        self.peers[0] = connection
        send(connection, **hello)
        answer = receive(connection, max(until - time.monotonic(), 0) + 2 * IDENTIFY_TIMEOUT) or {}
        if "failed" in answer:
            raise RunError(answer["failed"])
        if answer.get("start") != self.processes:
            reply = f"expects {answer['start']} processes" if "start" in answer else "ended"
            raise RunError(
                f"Process 0 {reply}; this is process {self.process} of {self.processes}."
            )

    def agreed(self, value: Any) -> Any:
        """Returns process 0's value (JSON); all processes must call this in the same order."""
        if self.process == 0:
            self.broadcast(value=value)
            return value
        while self.failure is None:
            try:
                return self.values.get(timeout=0.2)
            except queue.Empty:
                continue
        raise RunError(self.failure)

    def cause_of(self, error: BaseException) -> RunError | None:
        """Returns the failure of another process that caused this error, or None."""
        if isinstance(error, InputError | RunError | Stopped | KeyboardInterrupt | SystemExit):
            return None
        until = time.monotonic() + 2  # the report of the failure may still be on its way
        while self.failure is None and time.monotonic() < until:
            time.sleep(0.05)
        return None if self.failure is None else RunError(self.failure)

    def __enter__(self) -> "Connections":
        self.heard = dict.fromkeys(self.peers, time.monotonic())
        for reader in self.readers:
            reader.start()
        threading.Thread(target=self.beat, daemon=True).start()
        atexit.register(self.end)
        return self

    def beat(self) -> None:
        """Sends heartbeats, and reports a process that sends none."""
        interval, before = self.heartbeat_timeout / 4, time.monotonic()
        while self.failure is None and not self.finished:
            time.sleep(interval)
            now = time.monotonic()
            if now - before > 2 * interval:  # this process was frozen itself, and has read nothing
                with self.lock:
                    self.heard = dict.fromkeys(self.heard, now)
            before = now
            for peer, heard in list(self.heard.items()):
                if now - heard > self.heartbeat_timeout:
                    self.fail(
                        f"Process {peer} of {self.processes} has sent no heartbeat for "
                        f"{self.heartbeat_timeout:g} s (mesh.heartbeat_timeout): it is frozen, or "
                        "its host is gone."
                    )
            self.broadcast(heartbeat=self.process)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, SystemExit):
            error = error.__cause__ if error.code else None
        if error is None or isinstance(error, Stopped):
            self.finished = True
            self.broadcast(bye=True)
        else:
            self.report_error(error)

    def report_error(self, error: BaseException) -> None:
        """Reports an error of this process to the others."""
        with self.lock:
            if self.failure is not None:
                return
            self.exit_code = getattr(error, "exit_code", 1)
            known = isinstance(error, InputError | RunError)
            sentence = str(error) if known else f"{type(error).__name__}: {error}"
            self.failure = f"Process {self.process} of {self.processes} failed: {sentence}"
            self.broadcast(failed=self.failure)
        threading.Thread(target=self.end_late, args=(GRACE,), daemon=True).start()

    def listen(self, peer: int, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines, suppress(OSError, ValueError):
            for line in lines:  # a reset or an incomplete line also ends the connection
                message = json.loads(line)
                self.heard[peer] = time.monotonic()
                if "heartbeat" in message:
                    continue
                if "bye" in message:
                    with self.lock:
                        self.heard.pop(peer)
                    return
                if "failed" in message:
                    self.fail(message["failed"])
                    return
                self.values.put(message["value"])
        if self.finished:  # this process has sent its last message, so the others may close
            return
        self.fail(f"Process {peer} of {self.processes} has died: see its output.")

    def fail(self, sentence: str) -> None:
        with self.lock:
            if self.failure is not None:
                return
            self.failure, self.exit_code = sentence, RunError.exit_code
            if self.process == 0:
                self.broadcast(failed=sentence)
        grace = GRACE_AFTER_REPORT if self.process else GRACE  # process 0 has files to finish
        threading.Thread(target=self.end_late, args=(grace, REPORT_DELAY), daemon=True).start()

    def end_late(self, grace: float, told_after: float = GRACE) -> None:
        """Ends this process after `grace` seconds; its main thread may wait for a dead process.

        It prints the failure `told_after` seconds from now, but at the latest at its end.
        """
        told_after = min(told_after, grace)
        time.sleep(told_after)
        write(self.failure, sys.stderr)
        time.sleep(grace - told_after)
        calls = threading.Thread(target=self.call_before_exit, daemon=True)
        calls.start()
        calls.join(LAST_CALLS)
        os._exit(self.exit_code)

    def call_before_exit(self) -> None:
        for call in self.before_exit.copy():
            try:
                call()
            except Exception as error:  # noqa: BLE001  the others are called too
                write(f"At its end: {type(error).__name__}: {error}", sys.stderr)

    def end(self) -> None:
        """Ends a failed process before JAX's exit handler, which would wait and then abort."""
        if self.failure is None:
            return
        if self.process == 0:  # once this process is gone, JAX aborts the others
            until = time.monotonic() + GRACE
            for reader in self.readers:
                reader.join(max(until - time.monotonic(), 0))
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(self.exit_code)

    def broadcast(self, **message: Any) -> None:
        """Sends a message to all connected processes; the readers handle a closed connection."""
        with self.sending:  # two threads must not mix their messages
            for connection in self.peers.values():
                send(connection, **message)


def kept_alive(connection: socket.socket) -> socket.socket:
    """Turns on TCP keepalive, which notices a host that is unreachable while nothing is sent."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # Linux
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return connection


def send(connection: socket.socket, **message: Any) -> None:
    """Sends a message, if the connection is still open."""
    with suppress(OSError):
        connection.sendall(json.dumps(message).encode() + b"\n")


def receive(connection: socket.socket, timeout: float) -> dict[str, Any] | None:
    """Returns one message, or None if none arrived in time or it was not valid."""
    connection.settimeout(timeout)
    try:
        with connection.makefile("rb", buffering=0) as file:
            message = json.loads(file.readline(65536))
    except (OSError, ValueError):
        return None
    return message if isinstance(message, dict) else None
