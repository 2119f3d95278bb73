"""Tests the reading of responses, and the seeds of requests."""

import asyncio
import json
from contextlib import aclosing

import numpy as np
import pytest

from rl4p.base.http import HttpClient, InvalidResponseError, RefusedError, RequestError
from rl4p.base.types import Finish
from rl4p.engine.remote.protocol import (
    Deadline,
    PoolOptions,
    RemoteServer,
    ServerRequest,
    checked,
    only_choice,
    seed_of,
    value_at,
)

REQUEST = ServerRequest(
    tokens=[1, 2], max_tokens=3, end_ids=(7, 9), vocabulary=10, version=3, label="new"
)
URL = "http://a"


@pytest.mark.parametrize(
    ("tokens", "reason", "finish"),
    [
        ([1, 9], "stop", Finish.STOP),
        ([7], "stop", Finish.STOP),
        ([1, 2, 3], "length", Finish.LENGTH),
        ([1, 2, 7], "length", Finish.STOP),
        ([1, 2, 7], "stop", Finish.STOP),
        ([1], "abort", Finish.ABORT),
        ([], "abort", Finish.ABORT),
        ([1, 9], "abort", Finish.ABORT),
    ],
)
def test_a_response_that_can_be_correct_is_read(tokens, reason, finish):
    logprobs = [-1.0] * len(tokens)
    completion = checked(REQUEST, URL, tokens, logprobs, reason, versions=["new", "new"])
    assert (completion.tokens.tolist(), completion.finish) == (tokens, finish)
    assert completion.versions.tolist() == [3] * len(tokens)
    assert completion.engine == URL


@pytest.mark.parametrize(
    ("tokens", "logprobs", "reason", "why"),
    [
        ([1, 9], [-1.0], "stop", "2 tokens, but 1 log-probabilities"),
        ([1, 10], [-1.0, -1.0], "stop", "10 is no token id"),
        ([1, -1], [-1.0, -1.0], "stop", "-1 is no token id"),
        ([True, 9], [-1.0, -1.0], "stop", "True is no token id"),
        ([1.0, 9], [-1.0, -1.0], "stop", "no token id"),
        ([1, 9], [-1.0, float("nan")], "stop", "nan is no log-probability"),
        ([1, 9], [-1.0, float("-inf")], "stop", "-inf is no log-probability"),
        ([1, 9], [-1.0, None], "stop", "None is no log-probability"),
        ([1, 9], [-1.0, 0.01], "stop", "0.01 is no log-probability"),
        ([], [], "stop", "no tokens"),
        ([], [], "length", "no tokens"),
        ([1, 2, 3, 4], [-1.0] * 4, "length", "4 tokens, but max_tokens=3"),
        ([1, 2, 3, 4], [-1.0] * 4, "abort", "4 tokens, but max_tokens=3"),
        ([7, 9], [-1.0] * 2, "stop", "an end token before the end"),
        ([7, 1], [-1.0] * 2, "abort", "an end token before the end"),
        ([1, 2], [-1.0] * 2, "stop", "it stopped at the token 2"),
        ([1, 2], [-1.0] * 2, "length", "it ended for its length of 2, below 3"),
        ([1, 9], [-1.0] * 2, "error", "for the reason 'error'"),
        ([1, 9], [-1.0] * 2, None, "for the reason None"),
        ("19", [-1.0] * 2, "stop", "no list"),
        ([1, 9], None, "stop", "no list"),
    ],
)
def test_a_response_that_cannot_be_correct_is_not_used(tokens, logprobs, reason, why):
    with pytest.raises(InvalidResponseError, match=why):
        checked(REQUEST, URL, tokens, logprobs, reason)


def test_tokens_of_other_weights_are_not_used():
    with pytest.raises(InvalidResponseError, match="tokens of the weights 'old', but the current"):
        checked(REQUEST, URL, [1, 9], [-1.0, -1.0], "stop", versions=["new", "old"])


def test_a_log_probability_that_rounding_put_above_0_is_0():
    completion = checked(REQUEST, URL, [1, 9], [-1.0, 5e-4], "stop")
    assert completion.logprobs.tolist() == [-1.0, 0.0]


def test_exactly_one_completion_is_read():
    assert only_choice({"choices": [{"index": 0}]}) == {"index": 0}
    for wrong in ({"choices": []}, {"choices": [1, 2]}, {"choices": 3}, {}, [], "text", None):
        with pytest.raises(InvalidResponseError):
            only_choice(wrong)


def test_a_missing_field_is_named():
    with pytest.raises(InvalidResponseError, match=r"no meta_info\.finish_reason"):
        value_at({"meta_info": {}}, "meta_info", "finish_reason")


def test_seeds_depend_on_all_bits_of_the_key_and_on_the_tokens_drawn_before():
    keys = np.uint32([[1, 2], [2, 1], [1, 3], [0, 2]])
    seeds = [seed_of(key, drawn, 63) for key in keys for drawn in (0, 1, 5)]
    assert len(set(seeds)) == len(seeds)
    assert seeds == [seed_of(key, drawn, 63) for key in keys for drawn in (0, 1, 5)]
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(seeds) >= 2**60
    short = [seed_of(np.uint32([n, 0]), 0, 31) for n in range(100)]
    assert all(0 <= seed < 2**31 for seed in short)
    assert len(set(short)) == 100


def send(url, *, key="", call="send", times=1):
    """Returns the results of the same call to one server, repeated."""

    async def repeat():
        async with aclosing(HttpClient(url=url, key=key, connections=1)) as client:
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
