"""The HTTP server of the application: its connections, its socket, its start and its end."""

import asyncio
import fcntl
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from rl4p.base.errors import InputError

HEAD_BYTES = 2**16  # of a request line with its headers
HEADERS = 256  # of a request
HEAD_SECONDS = 10.0  # from the first byte of a request, or from the connection, to its last header
STALLED_SECONDS = 15.0  # after which a client must have read `LEAST_READ` bytes that wait for it
LEAST_READ = 2**16
MOST_CONNECTIONS = 4096
NOT_SENT = 0x894B  # SIOCOUTQNSD of Linux: the bytes of a socket that wait for room at the other end
OTHER_FILES = 128  # that the process may open beside its connections

SIGNALS = (signal.SIGTERM, signal.SIGINT)
GRACE_SECONDS = 3  # for responses that are being sent when a signal arrives
LAST_SECONDS = 4.5  # after which the process ends, whatever threads and clients do
KEEP_ALIVE_SECONDS = 120  # longer than a training step, whose next requests reuse the connections
BACKLOG = 2048


class Connection(HttpToolsProtocol):
    """uvicorn's protocol for HTTP/1.1, with limits of bytes, seconds and connections.

    The request line and the headers are limited in bytes and in time. A client that does not read
    its response, or does not end the body of a request that was answered, is disconnected. If there
    are too many connections, the one that has been idle for longest makes room; without an idle
    one, the new one is refused.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.in_head = True
        self.begun = False  # whether a head began in the present bytes
        self.head_bytes = 0
        self.descriptor = -1
        self.unread = 0  # bytes that wait for the client
        self.head_timer: asyncio.TimerHandle | None = None
        self.write_timer: asyncio.TimerHandle | None = None

    # Events of the transport.

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.descriptor = transport.get_extra_info("socket").fileno()
        self.expect(HEAD_SECONDS)
        if len(self.connections) > most_connections():
            others: Any = self.connections  # all of this class
            idle: Any = min(
                (x for x in others if x is not self and x.idle and not x.transport.is_closing()),
                key=lambda x: (x.cycle is not None, x.since),
                default=None,
            )
            if idle is None:
                self.refuse(429, "The server has too many connections: try again later.")
            else:
                idle.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self.descriptor = -1
        self.expect(None)
        self.watch(None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        while data and not self.transport.is_closing():
            self.begun, size = False, HEAD_BYTES if self.in_head or self.idle else len(data)
            super().data_received(data[:size])
            if self.in_head and not self.begun:
                self.head_bytes += min(size, len(data))
                if self.head_bytes >= HEAD_BYTES and not self.transport.is_closing():
                    self.refuse(431, f"The headers are longer than {HEAD_BYTES} bytes.")
            data = data[size:]

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread = self.transport.get_write_buffer_size()
        self.watch(STALLED_SECONDS)

    def resume_writing(self) -> None:
        super().resume_writing()
        self.watch(None)

    # Events of the parser.

    def on_message_begin(self) -> None:
        super().on_message_begin()
        scope: Any = self.scope  # its type says that there may be no state
        scope["state"]["unsent"] = self.unsent
        self.in_head, self.begun, self.head_bytes = True, True, 0
        if self.idle:
            self.expect(HEAD_SECONDS)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > HEADERS:
            raise ValueError("The request has too many headers.")  # the parser answers with 400

    def on_headers_complete(self) -> None:
        self.in_head = False
        self.expect(None)
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        unfinished = self.cycle.more_body
        super().on_response_complete()
        self.expect(HEAD_SECONDS if unfinished or self.in_head else None)

    def unsent(self) -> int:
        """Returns the bytes for which the client has no room; 0 if the system does not tell.

        Any thread may call it.
        """
        count = bytearray(4)
        with suppress(OSError, ValueError):  # it has been closed
            fcntl.ioctl(self.descriptor, NOT_SENT, count)
        return int.from_bytes(count, sys.byteorder)

    # Deadlines.

    @property
    def idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def expect(self, seconds: float | None) -> None:
        """Closes the connection after so many seconds, or never."""
        if self.head_timer is not None:
            self.head_timer.cancel()
        self.since = self.loop.time()
        self.head_timer = None if seconds is None else self.loop.call_later(seconds, self.drop)

    def watch(self, seconds: float | None) -> None:
        """Checks after so many seconds whether the client reads its response."""
        if self.write_timer is not None:
            self.write_timer.cancel()
        self.write_timer = None if seconds is None else self.loop.call_later(seconds, self.check)

    def check(self) -> None:
        """Ends a connection whose client has read too little since the last check."""
        left = self.transport.get_write_buffer_size()
        if left > self.unread - LEAST_READ:
            self.transport.abort()
        else:
            self.unread = left
            self.watch(STALLED_SECONDS)

    def drop(self) -> None:
        if self.idle:
            self.transport.abort()

    def refuse(self, status: int, message: str) -> None:
        head = b"content-type: text/plain\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + head % len(message) + message.encode())
        self.transport.close()


def most_connections() -> int:
    """Returns the most connections at a time, for which the process has enough files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(16, min(MOST_CONNECTIONS, files - OTHER_FILES))


def listening(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound to an address; port 0 chooses a free port.

    Raises:
      InputError: the port is in use, or the address is not one of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"host={host} is not an address of this machine: {error}.") from None
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind(address)
        bound.listen(BACKLOG)
    except OSError as error:
        bound.close()
        raise InputError(
            f"The server cannot listen at {host} port {port}: {error.strerror}. Choose another "
            "with port=PORT; port=0 takes a free one."
        ) from None
    return bound


def address_of(bound: socket.socket, host: str) -> str:
    port = bound.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class WebServer(uvicorn.Server):
    """uvicorn, which ends by SIGTERM and Ctrl-C and then returns.

    uvicorn's handling would end the process by the signal, and not with exit code 0.
    """

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def configured(app: Any) -> WebServer:
    config = uvicorn.Config(
        app,
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level=logging.CRITICAL,  # clients cause the rest
        http=Connection,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return WebServer(config)


async def run(app: Any, bound: socket.socket, ready: Callable[[], None], end: Callable[[], None]):
    """Serves an application until SIGTERM or Ctrl-C.

    Args:
      ready: called once requests are taken.
      end: called when a signal arrives. It ends the requests that are being answered. A second
        signal waits for none. The process ends after `LAST_SECONDS`, even if it does not return.
    """
    server = configured(app)
    loop = asyncio.get_running_loop()

    def receive() -> None:
        server.force_exit = server.should_exit
        server.should_exit = True
        if not last.ident:
            last.start()
        end()

    last = threading.Timer(LAST_SECONDS, end_process)
    last.daemon = True

    for number in SIGNALS:
        loop.add_signal_handler(number, receive)
    try:
        serving = asyncio.ensure_future(server.serve(sockets=[bound]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            ready()
        await serving
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def end_process() -> None:
    """Ends the process at once, as after an orderly end."""
    sys.stdout.flush()
    os._exit(0)
