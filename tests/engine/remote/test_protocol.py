"""Tests one server of a pool, and the options of the pool."""

import asyncio
import json

import pytest

from rl4p.base.http import HttpClient, RefusedError, RequestError
from rl4p.engine.remote.protocol import Deadline, PoolOptions, RemoteServer


def send(url, *, key="", call="send", times=1):
    """Returns the results of the same call to one server, repeated."""

    async def repeat():
        async with HttpClient(url=url, key=key, connections=1) as client:
            server = RemoteServer(client=client)
            method = getattr(server, call)
            return [await method("POST", "/x", {"a": 1}, seconds=5.0) for _ in range(times)]

    return asyncio.run(repeat())


def test_the_value_of_a_response_is_returned_and_the_key_is_sent(serve):
    asked = serve(lambda *_: {"b": 2})
    assert send(asked.url + "/", key="secret") == [{"b": 2}]
    assert asked.headers[0]["Authorization"] == "Bearer secret"
    assert (asked.paths, asked.bodies) == (["/x"], [{"a": 1}])


def test_a_response_that_is_no_json_is_text(serve):
    assert send(serve(lambda *_: b"Cache flushed.").url) == ["Cache flushed."]


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_a_request_has_one_attempt(serve, status):
    asked = serve(lambda *_: (status, {}, b"busy"))
    with pytest.raises(RequestError, match=f"HTTP {status} at /x: busy"):
        send(asked.url)
    assert len(asked.bodies) == 1


@pytest.mark.parametrize("status", [404, 405])
def test_a_path_that_is_not_offered_is_requested_once(serve, status):
    asked = serve(lambda *_: (status, {}, b""))
    assert send(asked.url, call="offered", times=2) == [(False, None)] * 2
    assert len(asked.bodies) == 1


def test_a_path_that_is_offered_may_refuse(serve):
    assert send(serve(lambda *_: {}).url, call="offered") == [(True, {})]
    with pytest.raises(RefusedError):
        send(serve(lambda *_: (400, {}, b"")).url, call="offered")


def test_a_deadline_passes():
    assert 9 < Deadline(10).left <= 10
    assert not Deadline(10).over
    assert (Deadline(-1).left, Deadline(-1).over) == (1e-3, True)


@pytest.mark.parametrize(
    ("servers", "why"),
    [
        ((), "servers is empty"),
        (("http://a:1", "http://a:1/"), "twice"),
        (("127.0.0.1:8000",), "is not an address"),
        (("ftp://a",), "is not an address"),
        (("http://me:secret@a",), "password"),
        (("http://a:1/v1",), "leave out /v1"),
        (("http://a:1/v1/",), "leave out /v1"),
        (("http://a:1/?q=1",), "leave out /v1"),
    ],
)
def test_addresses_are_checked(servers, why):
    with pytest.raises(ValueError, match=why) as error:
        PoolOptions(servers=servers)
    assert "secret" not in str(error.value)


def test_a_key_in_place_of_its_variable_is_refused():
    with pytest.raises(ValueError, match="not the name of an environment variable") as error:
        PoolOptions(servers=("http://a:1",), key_variable="sk-123")
    assert "sk-123" not in str(error.value)


def test_the_value_is_read_as_json_first(serve):
    assert send(serve(lambda *_: json.dumps("x").encode()).url) == ["x"]
