"""Tests the connection to one server."""

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rl4p.rollout.remote import server as module
from rl4p.rollout.remote.server import DownError, FailedError, RefusedError, Server, pause


@contextmanager
def answering(status, content=b"{}", delay=0.0, headers=None):
    """Answers every request alike; yields the address and the headers that it got."""
    got, wait = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            got.append(dict(self.headers))
            wait.wait(delay)
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, *_):
            pass

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{http.server_address[1]}", got
    finally:
        wait.set()
        http.shutdown()
        http.server_close()
        thread.join()


def ask(url, *, key="", seconds=5.0, call="ask"):
    async def once():
        server = Server(url=url, key=key, connections=1)
        try:
            return await getattr(server, call)("POST", "/x", {"a": 1}, seconds=seconds)
        finally:
            await server.close()

    return asyncio.run(once())


def test_the_value_of_an_answer_is_returned_and_the_key_is_sent():
    with answering(200, json.dumps({"b": 2}).encode()) as (url, got):
        assert ask(url + "/", key="secret") == {"b": 2}
    assert got[0]["Authorization"] == "Bearer secret"


def test_an_answer_that_is_no_json_is_text():
    with answering(200, b"Cache flushed.") as (url, _):
        assert ask(url) == "Cache flushed."


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_failure_that_may_pass(status):
    with answering(status, b"busy") as (url, _), pytest.raises(FailedError, match=f"HTTP {status}"):
        ask(url)


@pytest.mark.parametrize("status", [302, 400, 401, 404, 422])
def test_a_failure_that_does_not_pass_is_told_without_the_key(status):
    headers = {"Location": "http://x"}
    with (
        answering(status, b"the key is secret", headers=headers) as (url, _),
        pytest.raises(RefusedError, match=r"the key is \[key\]") as error,
    ):
        ask(url, key="secret")
    assert error.value.status == status


def test_a_server_that_is_slow_or_not_there_is_down():
    with answering(200, delay=30) as (url, _), pytest.raises(DownError, match=r"within 0\.1 sec"):
        ask(url, seconds=0.1)
    with pytest.raises(DownError, match="cannot be reached"):
        ask(url)


def test_an_answer_without_end_is_not_kept(monkeypatch):
    monkeypatch.setattr(module, "LARGEST_ANSWER", 10)
    with answering(200, b"x" * 1000) as (url, _), pytest.raises(FailedError, match="over 0 MiB"):
        ask(url)


def test_a_path_that_is_not_offered_is_asked_for_once():
    async def twice(url):
        server = Server(url=url, key="", connections=1)
        found = [await server.offered("GET", "/x", seconds=5) for _ in range(2)]
        await server.close()
        return found

    with answering(404) as (url, got):
        assert asyncio.run(twice(url)) == [(False, None), (False, None)]
        assert len(got) == 1
    with answering(200) as (url, _):
        assert ask(url, call="offered") == (True, {})
    with answering(400) as (url, _), pytest.raises(RefusedError):
        ask(url, call="offered")


def test_pauses_grow_to_a_limit_and_vary():
    assert 0.05 <= pause(1) <= 0.15
    assert 0.4 <= pause(4) <= 1.2
    assert pause(1000) <= 15
    assert len({pause(3) for _ in range(10)}) > 1
