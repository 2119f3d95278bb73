"""Tests the limits of connections, with real sockets."""

import asyncio
import resource
import socket
import sys
from contextlib import asynccontextmanager

import pytest

from rl4p.base.errors import InputError
from rl4p.engine.serving import web_server
from rl4p.engine.serving.web_server import address_of, configured, listening

GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
OK = b"HTTP/1.1 200 OK"


@pytest.fixture
def limits(monkeypatch):
    def limits(**values):
        for name, value in values.items():
            monkeypatch.setattr(web_server, name, value)

    return limits


def serving(call, answer=b"ok", waits=None, seen=None):
    """Calls a function with `connect` and the server, which answers everything with `answer`."""

    async def app(scope, receive, send):
        if waits is not None:
            await waits.wait()
        if seen is not None:
            seen.append(scope["state"]["unsent"])
        headers = [(b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    @asynccontextmanager
    async def connect(*parts, small=False):
        kind = socket.socket()
        if small:
            kind.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        kind.setblocking(False)
        await asyncio.get_running_loop().sock_connect(kind, address)
        reader, writer = await asyncio.open_connection(sock=kind, limit=4096)
        for part in parts:
            writer.write(part)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def main():
        server = configured(app)
        task = asyncio.ensure_future(server.serve(sockets=[bound]))
        while not server.started:
            await asyncio.sleep(0.001)
        try:
            async with asyncio.timeout(20):
                return await call(connect, server.server_state)
        finally:
            server.should_exit = server.force_exit = True
            await task

    with listening("127.0.0.1", 0) as bound:
        address = bound.getsockname()
        return asyncio.run(main())


async def ended(reader):
    """Returns what arrives until the connection ends."""
    content = b""
    try:
        while part := await reader.read(2**16):
            content += part
    except ConnectionResetError:
        pass
    return content


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a: b\r\n" * 200_000,
        b"GET / HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 1_000_000,
        b"GET /" + b"a" * 1_000_000,
        GET + b"GET /" + b"a" * 1_000_000,
    ],
    ids=["many", "one", "url", "second"],
)
def test_headers_have_a_longest_length(limits, head):
    async def call(connect, state):
        async with connect() as (reader, writer):
            try:
                for at in range(0, len(head), 4096):
                    writer.write(head[at : at + 4096])
                    await writer.drain()
            except ConnectionResetError:
                pass
            return await ended(reader)

    limits(HEAD_SECONDS=1000)
    assert serving(call).count(OK) == head.count(GET)  # and the connection has ended


@pytest.mark.parametrize(("more", "answers"), [(0, 2), (1, 0)])
def test_a_request_has_a_largest_number_of_headers(limits, more, answers):
    limits(HEAD_SECONDS=1000)
    count = web_server.HEADERS - 1 + more  # beside the host
    head = GET[:-2] + b"a:\r\n" * count + b"\r\n"

    async def call(connect, state):
        async with connect(head, GET[:-2] + b"Connection: close\r\n\r\n") as (reader, _):
            return await ended(reader)

    assert serving(call).count(OK) == answers


def test_long_headers_below_the_limit_and_bodies_above_it_are_taken():
    async def call(connect, state):
        head = GET[:-2] + b"A: " + b"a" * (web_server.HEAD_BYTES - 200) + b"\r\n"
        body = b"x" * (3 * web_server.HEAD_BYTES)
        post = b"POST" + head[3:] + b"Content-Length: %d\r\n\r\n" % len(body) + body
        async with connect(post, post, GET[:-2] + b"Connection: close\r\n\r\n") as (reader, _):
            return await ended(reader)

    assert serving(call).count(OK) == 3


@pytest.mark.parametrize(
    ("parts", "answers"),
    [
        ((), 0),
        ((GET[:-2],), 0),
        ((GET, GET[:9]), 1),
        ((b"POST" + GET[3:-2] + b"Content-Length: 9\r\n\r\nbody",), 1),
        ((b"POST" + GET[3:-2] + b"Transfer-Encoding: chunked\r\n\r\n5;aaa",), 1),
    ],
    ids=["nothing", "half", "second", "body", "chunk"],
)
def test_requests_that_do_not_end_are_dropped(limits, parts, answers):
    limits(HEAD_SECONDS=0.1)

    async def call(connect, state):
        async with connect(*parts) as (reader, _):
            return await ended(reader)

    assert serving(call).count(OK) == answers


def test_a_later_request_that_does_not_end_is_dropped(limits):
    limits(HEAD_SECONDS=0.1)

    async def call(connect, state):
        async with connect(GET) as (reader, writer), asyncio.timeout(20):
            await reader.readuntil(b"ok")
            writer.write(GET[:9])
            return await ended(reader)

    assert serving(call) == b""


def test_a_connection_may_be_idle_between_requests_and_while_it_waits(limits):
    limits(HEAD_SECONDS=0.05)
    waits = asyncio.Event()

    async def call(connect, state):
        async with connect(GET) as (reader, writer):
            await asyncio.sleep(0.15)
            waits.set()
            assert await reader.readuntil(b"ok")
            await asyncio.sleep(0.15)
            writer.write(GET)
            return await reader.readuntil(b"ok")

    assert serving(call, waits=waits).startswith(OK)


@pytest.mark.parametrize("reads", [False, True])
def test_a_client_that_does_not_read_is_disconnected(limits, reads):
    limits(STALLED_SECONDS=0.3, LEAST_READ=2**10)
    answer = b"x" * 2**23

    async def call(connect, state):
        async with connect(GET, small=True) as (reader, _):
            if not reads:
                while state.connections or not state.total_requests:
                    await asyncio.sleep(0.01)
                return 0
            await reader.readuntil(b"\r\n\r\n")
            size = 0
            while part := await reader.read(2**20):
                size += len(part)
                if size == len(answer):
                    break
                await asyncio.sleep(0.001)
            return size

    assert serving(call, answer) == reads * len(answer)


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell what is unsent")
def test_what_a_client_has_no_room_for_is_told():
    answer, seen = b"x" * 2**18, []

    async def call(connect, state):
        async with connect(GET, small=True) as (reader, _):
            while not seen:
                await asyncio.sleep(0.001)
            (unsent,) = seen
            while unsent() == 0:
                await asyncio.sleep(0.001)
            assert 0 < unsent() <= len(answer) + 100
            await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(len(answer))
            while unsent():
                await asyncio.sleep(0.001)
        while state.connections:
            await asyncio.sleep(0.001)
        return unsent()

    assert serving(call, answer, seen=seen) == 0


def test_the_longest_idle_connection_makes_room_and_waiting_ones_do_not(limits):
    limits(most_connections=lambda: 3)
    waits = asyncio.Event()
    waits.set()

    async def call(connect, state):
        async with connect(GET) as (kept, _), connect() as (new, _), connect() as (newer, _):
            assert await kept.readuntil(b"ok")
            async with connect(GET) as (other, _):
                assert await other.readuntil(b"ok")
                assert await ended(new) == b""  # has sent nothing for longest
                waits.clear()
                async with connect(GET) as (first, _), connect(GET) as (second, _):
                    assert await ended(newer) == b""
                    assert await ended(kept) == b""
                    await asyncio.sleep(0.05)
                    async with connect(GET) as (third, _), connect(GET) as (refused, _):
                        assert await ended(other) == b""
                        content = await ended(refused)
                        waits.set()
                        for each in (first, second, third):
                            assert await each.readuntil(b"ok")
                        return content

    content = serving(call, waits=waits)
    assert content.startswith(b"HTTP/1.1 429")
    assert content.endswith(b"too many connections: try again later.")


def test_there_are_files_for_all_connections():
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert 16 <= web_server.most_connections() <= max(16, files - web_server.OTHER_FILES)


def test_port_0_is_a_free_port():
    with listening("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        assert address_of(bound, "127.0.0.1") == f"http://127.0.0.1:{port}"
        assert address_of(bound, "::1") == f"http://[::1]:{port}"
        with socket.create_connection(("127.0.0.1", port)):
            pass


def test_a_port_in_use_is_said_in_a_sentence():
    with listening("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(InputError, match=rf"127.0.0.1 port {port}: .*in use.*port=PORT"):
            listening("127.0.0.1", port)


def test_an_address_must_be_one_of_this_machine():
    with pytest.raises(InputError, match=r"cannot listen at 192\.0\.2\.1"):
        listening("192.0.2.1", 0)
    with pytest.raises(InputError, match=r"host=nowhere\.invalid is not an address"):
        listening("nowhere.invalid", 0)
