import json
import threading
import time

import pytest

from rl4p.base import http as http
from rl4p.base.errors import InputError, RunError
from rl4p.base.http import InvalidResponseError
from rl4p.base.types import Sampling
from rl4p.tools.generation.options import Server
from rl4p.tools.generation.server import Chat, Client, read_answer
from tests.support.answers import completion, worked


@pytest.fixture
def make_chat():
    def make(**fields):
        defaults = {"model": "m", "sampling": Sampling(top_p=0.9), "max_tokens": 8, "seed": 0}
        return Chat(**defaults | fields)

    return make


def test_the_body_of_a_request(make_chat, questions):
    body = make_chat(system_prompt="Add.").body(questions[0], 0)
    assert body.pop("seed") in range(2**31)
    assert body == {
        "model": "m",
        "messages": [{"role": "system", "content": "Add."}, {"role": "user", "content": "11+22"}],
        "max_tokens": 8,
        "temperature": 1.0,
        "top_p": 0.9,
    }


def test_every_response_has_its_own_seed(make_chat, questions):
    chats = [make_chat(seed=seed) for seed in (0, 1)]
    seeds = {chat.body(q, n)["seed"] for chat in chats for q in questions for n in range(4)}
    assert len(seeds) == 24
    assert make_chat().body(questions[0], 1) == make_chat().body(questions[0], 1)


def test_fields_can_be_changed_and_left_out(make_chat, questions):
    changes = {"max_tokens": None, "max_completion_tokens": 8, "top_p": 1.0}
    body = make_chat(changes=changes).body(questions[0], 0)
    assert "max_tokens" not in body
    assert (body["max_completion_tokens"], body["top_p"]) == (8, 1.0)


def test_top_k_is_no_part_of_the_protocol(make_chat):
    sampling = Sampling(top_k=20)
    with pytest.raises(InputError, match=r"set server.body={top_k: 20}"):
        make_chat(sampling=sampling)
    make_chat(sampling=sampling, changes={"top_k": 20})


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        ("stop", "completed"),
        ("length", "truncated"),
        ("content_filter", "aborted"),
        (None, "aborted"),
        ([], "aborted"),
    ],
)
def test_a_response_is_read(questions, reason, status):
    _, _, content = completion("so #### 33", finish_reason=reason)
    sample = read_answer(content, questions[0], 2)
    assert (sample.response, sample.status, sample.length) == ("so #### 33", status, 7)
    assert (sample.id, sample.prompt, sample.sample) == (questions[0].id, "11+22", 2)


def test_odd_texts_are_read(questions):
    for given, text in (
        (None, ""),
        ("a\ud800b", "a\N{REPLACEMENT CHARACTER}b"),
        ("\U0001f600",) * 2,
    ):
        body = {"choices": [{"message": {"content": given}}], "usage": None}
        sample = read_answer(json.dumps(body).encode(), questions[0], 0)
        assert (sample.response, sample.status, sample.length) == (text, "aborted", None)
        sample.response.encode()


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{}]}', b'{"choices": null}',
     b'{"choices": [{"message": {"content": 3}}]}', b"\xff", b"[" * 100_000,
     b'{"choices": [{"message": {"content": "a"}}], "usage": 3}'],
)  # fmt: skip
def test_an_answer_without_a_response(questions, content):
    with pytest.raises(InvalidResponseError):
        read_answer(content, questions[0], 0)


KEY = "sk-secret-123"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(http, "FIRST_PAUSE", 0.01)


@pytest.fixture
def ask(questions, open_responses):
    """Returns a function that asks a server for two responses to each question."""

    def ask(url, *, samples=2, stopped=lambda: False, responses=None, **options):
        chat = Chat(model="m", sampling=Sampling(), max_tokens=8, seed=0)
        client = Client(server=Server(url=url, model="m", **options), chat=chat)
        responses = open_responses() if responses is None else responses
        client.complete(questions, samples, responses, stopped)
        return client, responses

    return ask


def right(body, number):
    return completion(worked(body))


def test_every_response_is_asked_for_once(serve, ask, questions):
    asked = serve(right)
    client, responses = ask(asked.url)
    assert [(r.id, r.sample) for r in responses.in_order()] == [
        (question.id, n) for question in questions for n in range(2)
    ]
    assert responses.in_order()[2].response == "15 and 26 #### 41"
    assert len(asked.bodies) == len({body["seed"] for body in asked.bodies}) == 6
    assert set(asked.paths) == {"/v1/chat/completions"}
    assert not [name for each in asked.headers for name in each if name == "Authorization"]
    assert client.failures == []


def test_only_missing_responses_are_asked_for(serve, ask, open_responses, questions, respond):
    asked, responses = serve(right), open_responses()
    responses.add([respond(questions[0], 1, "mine")])
    ask(asked.url, responses=responses)
    assert len(asked.bodies) == 5
    assert responses.in_order()[1].response == "mine"


@pytest.mark.quick(2)
@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_tried_again(serve, ask, status):
    def flaky(body, number):
        return (status, {}, b"{}") if number <= 4 else right(body, number)

    asked = serve(flaky)
    client, responses = ask(asked.url, concurrency=1)
    assert len(responses) == 6
    assert len(asked.bodies) == 10
    assert asked.bodies[0] == asked.bodies[4]  # the same seed
    assert client.failures == []


@pytest.mark.parametrize("content", [b"<html>", b'{"choices": []}'])
def test_malformed_responses_are_requested_again(serve, ask, content):
    asked = serve(lambda body, n: (200, {}, content) if n % 2 else right(body, n))
    _, responses = ask(asked.url, concurrency=1)
    assert (len(responses), len(asked.bodies)) == (6, 12)


def test_a_server_that_asks_to_wait_for_long_ends_the_job(serve, ask):
    asked = serve(lambda body, n: (429, {"Retry-After": "3600"}, b'{"error": "quota"}'))
    with pytest.raises(RunError, match=r"HTTP 429 quota\. It asks to wait for 3600 seconds"):
        ask(asked.url)


def test_requests_are_limited_in_number(serve, ask):
    def slow(body, number):
        time.sleep(0.02)
        return right(body, number)

    asked = serve(slow)
    ask(asked.url, samples=8, concurrency=3)
    assert asked.together == 3


@pytest.mark.parametrize(
    ("status", "hint"),
    [(307, "redirects are not followed"), (401, "server.key_variable=NAME"),
     (403, "server.key_variable=NAME"), (404, "is the address complete"),
     (405, "is the address complete")],
)  # fmt: skip
def test_a_wrong_address_or_key_ends_the_job(serve, ask, status, hint):
    asked = serve(lambda body, n: (status, {}, b'{"error": {"message": "No\\u001b[2J!"}}'))
    with pytest.raises(InputError, match=rf"HTTP {status} No \[2J! \(.*{hint}"):
        ask(asked.url, concurrency=1)
    assert len(asked.bodies) == 1


def test_a_request_that_is_refused_fails_alone(serve, ask):
    """For example a prompt that is too long for the server's model."""

    def refuses(body, number):
        if body["messages"][0]["content"] == "15+26":
            return 400, {}, b'{"error": {"message": "context length"}}'
        return right(body, number)

    asked = serve(refuses)
    client, responses = ask(asked.url, samples=10, concurrency=1)  # its samples count once
    assert client.failures == ["HTTP 400 context length"] * 10
    assert (len(responses), len(asked.bodies)) == (20, 30)


def test_failures_between_successes_do_not_end_the_job(serve, ask):
    asked = serve(lambda body, n: (503, {}, b"") if n % 2 else right(body, n))
    client, responses = ask(asked.url, samples=8, attempts=1, concurrency=1)
    assert (len(client.failures), len(responses)) == (12, 12)


def test_a_server_that_is_down_ends_the_job_soon(ask, serve, open_responses):
    asked = serve(lambda body, n: (503, {}, b"down"))
    with pytest.raises(RunError, match="failed 8 times in a row, at last with: HTTP 503 down"):
        ask(asked.url, samples=50, attempts=2, concurrency=4)
    assert len(asked.bodies) < 30
    nowhere = {"samples": 3, "attempts": 2, "responses": open_responses(name="other")}
    with pytest.raises(RunError, match="8 times in a row, at last with: it cannot be reached"):
        ask("http://127.0.0.1:9/v1", **nowhere)


def test_the_key_is_sent_and_never_shown(serve, ask, monkeypatch, capsys, caplog):
    caplog.set_level(0)
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(InputError, match=r"server.key_variable=MY_KEY: .* is not set"):
        ask("http://127.0.0.1:9/v1", key_variable="MY_KEY")
    monkeypatch.setenv("MY_KEY", KEY)
    asked = serve(lambda body, n: (401, {}, f'{{"error": "bad key {KEY}"}}'.encode()))
    with pytest.raises(InputError, match=r"HTTP 401 bad key \[key\]") as error:
        ask(asked.url, key_variable="MY_KEY")
    assert asked.headers[0]["Authorization"] == f"Bearer {KEY}"
    assert KEY not in f"{error.value}{error.value!r}{capsys.readouterr()}{caplog.text}"


@pytest.mark.slow
def test_a_huge_response_is_not_read_to_its_end(serve, ask):
    asked = serve(lambda body, n: (200, {}, b" " * (http.LARGEST_RESPONSE + 1)))
    client, responses = ask(asked.url, samples=1, concurrency=1)
    assert client.failures == ["a response over 32 MiB"] * 3
    assert len(asked.bodies) == 3
    assert len(responses) == 0


def test_a_signal_drops_open_requests(serve, ask):
    arrived, ended = threading.Event(), threading.Event()

    def hangs(body, number):
        if number > 2:
            arrived.set()
            ended.wait(60)
        return right(body, number)

    asked = serve(hangs)
    client, responses = ask(asked.url, concurrency=1, stopped=arrived.is_set)
    ended.set()
    assert len(responses) == 2
    assert client.failures == []
