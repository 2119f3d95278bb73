"""Tests the HTTP client: deadlines, bounds, retries, keys and proxies."""

import asyncio
import json
import socket
import threading
import time
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from rl4p.base import http as module
from rl4p.base.errors import InputError
from rl4p.base.http import (
    HttpClient,
    InvalidResponseError,
    RefusedError,
    RequestError,
    UnreachableError,
    error_message,
    for_each,
    is_loopback,
    pause,
    read_json,
    retry_after,
)

KEY = "sk-secret-123"
NOWHERE = "http://127.0.0.1:9"


@pytest.fixture
def pauses(monkeypatch):
    """The arguments of each pause, none of which is waited for."""
    pauses = []
    monkeypatch.setattr(module, "pause", lambda *how: pauses.append(how) or 0.0)
    return pauses


def send(url, path="", body=None, *, seconds=20.0, **options):
    async def once():
        async with aclosing(HttpClient(url=url, connections=1, **options)) as client:
            return await client.send("POST", path, {} if body is None else body, seconds=seconds)

    return asyncio.run(once())


def retry(url, read=read_json, *, seconds=20.0, attempts=3, **options):
    async def once():
        async with aclosing(HttpClient(url=url, connections=1, **options)) as client:
            return await client.retry("POST", "", {}, read, seconds=seconds, attempts=attempts)

    return asyncio.run(once())


@pytest.mark.parametrize(("kept", "connections"), [(60.0, 1), (0.05, 2)])
def test_an_idle_connection_is_soon_not_used_again(monkeypatch, kept, connections):
    """A server that closes idle connections then never closes one that a request is sent on."""
    assert module.KEPT < 5  # seconds after which uvicorn closes one
    monkeypatch.setattr(module, "KEPT", kept)
    opened = []

    async def answer(reader, writer):
        opened.append(writer)
        while await reader.read(2**16):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        await writer.wait_closed()

    async def two_requests():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, aclosing(HttpClient(url=url, connections=1)) as client:
            for pause in (0.2, 0.0):
                await client.send("GET", "", None, seconds=20.0)
                await asyncio.sleep(pause)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        await asyncio.gather(*others)  # the ends of connections

    asyncio.run(two_requests())
    assert len(opened) == connections


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_request_that_only_reads_is_repeated_if_its_connection_ends(method):
    """As behind an internal error of uvicorn, which answers and then closes the connection."""
    requests = []

    async def answer(reader, writer):
        requests.append(await reader.read(2**16))
        if len(requests) > 1:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        await writer.wait_closed()

    async def one_request():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, aclosing(HttpClient(url=url, connections=1)) as client:
            return await client.send(method, "", None, seconds=20.0)

    if method == "GET":
        assert asyncio.run(one_request()) == b"{}"
        assert len(requests) == 2
    else:  # it may have acted
        with pytest.raises(RequestError, match=r"RemoteProtocolError|ReadError"):
            asyncio.run(one_request())
        assert len(requests) == 1


def test_the_content_of_a_response_is_returned(serve):
    asked = serve(lambda body, _: body["n"] * 2)
    assert json.loads(send(asked.url + "/", "/x", {"n": 3})) == 6
    assert asked.paths == ["/x"]
    asked = serve(lambda *_: (204, {}, b""))
    assert send(asked.url + "/whole/address") == b""
    assert asked.paths == ["/whole/address"]


def test_texts_may_have_lone_surrogates(serve):
    asked = serve(lambda body, _: body)
    assert json.loads(send(asked.url, body={"text": "é\ud800"})) == {"text": "é\ud800"}


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_some_statuses_are_transient(serve, status):
    asked = serve(lambda *_: (status, {"Retry-After": "7"}, b"busy"))
    with pytest.raises(RequestError, match=rf"^HTTP {status} at /x: busy$") as error:
        send(asked.url, "/x")
    assert (error.value.transient, error.value.retry_after) == (True, 7.0)
    assert not isinstance(error.value, RefusedError)


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (302, "redirects are not followed"),
        (400, None),
        (401, "mine=NAME names the environment"),
        (403, "mine=NAME names the environment"),
        (404, "is the address complete"),
        (405, "is the address complete"),
        (422, None),
    ],
)
def test_other_statuses_are_final_and_may_have_a_hint(serve, status, hint):
    asked = serve(lambda *_: (status, {}, b"wrong"))
    with pytest.raises(RefusedError, match=rf"^HTTP {status} wrong$") as error:
        send(asked.url)
    assert (error.value.transient, error.value.status) == (False, status)
    given = error.value.hint("mine")
    assert given is None if hint is None else given.startswith(hint)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_redirects_are_not_followed(serve, status):
    elsewhere = serve(lambda *_: "stolen")
    asked = serve(lambda *_: (status, {"Location": elsewhere.url}, b""))
    with pytest.raises(RefusedError):
        send(asked.url, key=KEY)
    assert elsewhere.bodies == []


def test_the_key_is_sent_and_never_shown(serve, caplog):
    caplog.set_level(0)
    asked = serve(lambda *_: (400, {}, f"no such key: {KEY}\x1b[2J".encode()))
    with pytest.raises(RefusedError, match=r"^HTTP 400 no such key: \[key\] \[2J$"):
        send(asked.url, key=KEY)
    assert asked.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in caplog.text + repr(HttpClient(url=asked.url, key=KEY, connections=1))
    with pytest.raises(RefusedError):
        send(asked.url)
    assert "Authorization" not in asked.headers[1]

    def read(content):
        raise InvalidResponseError(f"it says {content.decode()}")

    asked = serve(lambda *_: KEY.encode())
    with pytest.raises(InvalidResponseError, match=r"^it says \[key\]$"):
        retry(asked.url, read, attempts=1, key=KEY)


def test_a_server_that_is_slow_or_not_there_is_unreachable(serve):
    over = threading.Event()
    asked = serve(lambda *_: over.wait(30))
    with pytest.raises(UnreachableError, match=r"^no response at /x within 0\.1 seconds$"):
        send(asked.url, "/x", seconds=0.1)
    over.set()
    with pytest.raises(UnreachableError, match=r"^it cannot be reached"):
        send(NOWHERE)


def test_a_response_without_end_is_not_read_to_its_end(serve):
    asked = serve(lambda *_: b"x" * (3 << 20))
    with pytest.raises(InvalidResponseError, match=r"^a response over 1 MiB$") as error:
        retry(asked.url, largest_response=1 << 20)
    assert not error.value.transient
    assert len(asked.bodies) == 1


def test_transient_failures_are_tried_again(serve, pauses):
    def answer(body, number):
        if number == 1:
            raise ConnectionError
        return {2: (503, {}, b"busy"), 3: (429, {"Retry-After": "17"}, b""), 4: b"{"}.get(number, 5)

    asked = serve(answer)
    assert retry(asked.url, attempts=5) == 5
    assert len(asked.bodies) == 5
    assert pauses == [(1, 0.0), (2, 0.0), (3, 17.0), (4, 0.0)]


def test_a_request_that_hangs_is_sent_again_after_its_deadline(serve, pauses):
    over = threading.Event()
    asked = serve(lambda _, number: over.wait(30) if number == 1 else 5)
    assert retry(asked.url, seconds=1.0) == 5
    over.set()
    assert len(asked.bodies) == 2


def test_the_last_failure_is_raised(serve, pauses):
    asked = serve(lambda _, number: (500, {}, f"failure {number}".encode()))
    with pytest.raises(RequestError, match=r"^HTTP 500 failure 3$"):
        retry(asked.url)
    with pytest.raises(UnreachableError, match="cannot be reached"):
        retry(NOWHERE)
    assert len(pauses) == 4


def test_a_refused_request_is_not_repeated(serve, pauses):
    asked = serve(lambda *_: (400, {}, b"too long"))
    with pytest.raises(RefusedError, match=r"^HTTP 400 too long$"):
        retry(asked.url)
    assert (len(asked.bodies), pauses) == (1, [])


@pytest.mark.parametrize("content", [b"", b"<html>", b'{"a": ', b"\xff", b"[" * 100_000])
def test_a_response_that_is_no_json_is_requested_again(serve, pauses, content):
    asked = serve(lambda _, number: content if number == 1 else 5)
    assert retry(asked.url) == 5
    assert len(asked.bodies) == 2


def test_a_server_that_asks_to_wait_for_long_gets_no_other_attempt(serve, pauses):
    asked = serve(lambda *_: (429, {"Retry-After": "3600"}, b'{"error": "quota"}'))
    with pytest.raises(RequestError, match=r"^HTTP 429 quota$") as error:
        retry(asked.url)
    assert error.value.retry_after == 3600
    assert (len(asked.bodies), pauses) == (1, [])


def test_pauses_grow_to_a_limit_and_vary():
    for failures, usual in ((1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (50, 60), (5000, 60)):
        lengths = [pause(failures) for _ in range(50)]
        assert usual / 2 <= min(lengths) < usual < max(lengths) <= usual * 1.5
    assert all(10.5 <= pause(1, 10.0) <= 11.5 for _ in range(50))
    assert 0.05 <= pause(1, first=0.1) <= 0.15
    assert 5 <= pause(1000, first=0.1, longest=10) <= 15


def test_how_long_to_wait():
    assert retry_after("3") == 3.0
    assert [retry_after(x) for x in ("", "-3", "nan", "inf", "soon", "1 2")] == [0.0] * 6
    later = datetime.now(UTC) + timedelta(seconds=60)
    assert 50 < retry_after(format_datetime(later, usegmt=True)) <= 60
    assert retry_after(format_datetime(later - timedelta(hours=1), usegmt=True)) == 0.0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"error": {"message": "too long", "type": "x"}}', "too long"),
        (b'{"error": "too long"}', "too long"),
        (b'{"message": "too long"}', "too long"),
        (b"<h1>Bad</h1>", "<h1>Bad</h1>"),
        (b'{"error": {"message": 3}}', '{"error": {"message": 3}}'),
        (b"[1]", "[1]"),
        (b"", ""),
    ],
)
def test_the_message_of_an_error_is_read(content, message):
    assert error_message(content) == message


def test_close_cancels_the_requests_under_way(serve):
    arrived, over = threading.Event(), threading.Event()

    def answer(*_):
        arrived.set()
        over.wait(30)

    asked = serve(answer)

    async def close_early():
        client = HttpClient(url=asked.url, connections=1)
        task = asyncio.create_task(client.send("POST", "", {}, seconds=30))
        await asyncio.to_thread(arrived.wait)
        await client.aclose()
        assert (client.tasks, client.http) == (set(), None)
        with pytest.raises(UnreachableError):
            await task

    asyncio.run(close_early())
    over.set()


def test_items_are_worked_on_so_many_at_a_time(serve):
    done, together, most = [], 0, 0

    async def work(item):
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.001)
        together -= 1
        done.append(item)

    asyncio.run(for_each(range(20), work, concurrency=3))
    assert (sorted(done), most) == (list(range(20)), 3)


def test_an_error_cancels_the_other_items():
    cancelled = []

    async def work(item):
        if item == 1:
            raise KeyError(item)
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append(item)

    with pytest.raises(KeyError):
        asyncio.run(for_each(range(20), work, concurrency=2))
    assert cancelled == [0]


class Proxy:
    """A proxy that answers every request itself, and remembers its first lines."""

    def __init__(self):
        self.requests = []
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        threading.Thread(target=self.work, daemon=True).start()

    def work(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                received = connection.recv(65536)
                self.requests.append(received.split(b"\r\n")[0])
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n7")
                time.sleep(0.01)


@pytest.fixture
def proxy(monkeypatch):
    proxy = Proxy()
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTP_PROXY", proxy.url)
    yield proxy
    proxy.socket.close()


def test_the_proxy_of_the_environment_is_used(proxy, monkeypatch):
    assert send("http://grader.invalid/score") == b"7"
    assert proxy.requests == [b"POST http://grader.invalid/score HTTP/1.1"]
    monkeypatch.setenv("NO_PROXY", "grader.invalid")
    with pytest.raises(UnreachableError):
        send("http://grader.invalid/score")
    assert len(proxy.requests) == 1


def test_servers_of_this_machine_are_reached_without_a_proxy(proxy, serve):
    asked = serve(lambda *_: 5)
    for host in ("127.0.0.1", "localhost"):
        assert send(asked.url.replace("127.0.0.1", host)) == b"5"
    assert (len(asked.bodies), proxy.requests) == (2, [])


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("[::1]:80", True), ("LOCALHOST:80", True),
     ("0.0.0.0", True), ("a.localhost", True), ("10.0.0.1", False), ("notlocalhost", False),
     ("localhost.example.org", False)],
)  # fmt: skip
def test_loopback_addresses(host, loopback):
    assert is_loopback(f"http://{host}/x") is loopback


def test_a_proxy_that_cannot_be_used_is_one_sentence(monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "what://me:secret@host")
    with pytest.raises(InputError, match="HTTP_PROXY, HTTPS_PROXY and ALL_PROXY must") as error:
        send("http://grader.invalid/score")
    assert "secret" not in str(error.value)
