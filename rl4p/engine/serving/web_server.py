"""The HTTP server of the application: its socket, its start and its end."""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from rl4p.base.errors import InputError
from rl4p.engine.serving.connection import Connection

SIGNALS = (signal.SIGTERM, signal.SIGINT)
GRACE_SECONDS = 3  # for responses that are being sent when a signal arrives
LAST_SECONDS = 4.5  # after which the process ends, whatever threads and clients do
KEEP_ALIVE_SECONDS = 120  # longer than a training step, whose next requests reuse the connections
BACKLOG = 2048


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
    """Returns the URL of a socket."""
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
    """Returns a uvicorn server for an application."""
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
