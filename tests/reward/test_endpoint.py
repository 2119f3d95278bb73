import threading
import time

import pytest

from rl4p.base.errors import RunError
from rl4p.base.http import InvalidResponseError
from rl4p.reward.endpoint import MOST_FAILURES, Endpoint, NoAnswer

pytestmark = pytest.mark.usefixtures("impatient")


def endpoint(url, **options):
    defaults = {"key_variable": None, "timeout_seconds": 20.0, "attempts": 3, "concurrency": 4}
    return Endpoint(url=url, **defaults | options)


def send(url, *numbers, **options):
    return endpoint(url, **options).send([{"n": n} for n in numbers], lambda _, answer: answer)


def test_answers_come_in_the_order_of_the_requests(serve):
    def answer(body, number):
        time.sleep(0.01 * (body["n"] % 3))
        return body["n"] * 2

    asked = serve(answer)
    assert send(asked.url, *range(20)) == [2 * n for n in range(20)]
    assert 1 < asked.together <= 4
    assert send(asked.url) == []


def test_a_request_fails_after_all_attempts_and_its_neighbours_do_not(serve):
    asked = serve(lambda body, _: (500, {}, b"no") if body["n"] == 2 else body["n"])
    assert send(asked.url, 1, 2, 3) == [1, NoAnswer(reason="HTTP 500 no"), 3]
    assert [body["n"] for body in asked.bodies].count(2) == 3


def test_a_refused_request_is_not_repeated(serve):
    asked = serve(lambda body, _: (400, {}, b"too long") if body["n"] == 2 else body["n"])
    assert send(asked.url, 1, 2, 3) == [1, NoAnswer(reason="HTTP 400 too long"), 3]
    assert len(asked.bodies) == 3


def test_an_answer_that_cannot_be_used_is_asked_for_again(serve):
    def read(index, answer):
        if answer != "good":
            raise InvalidResponseError(f"{answer} at {index}")
        return answer

    asked = serve(lambda _, number: {1: b"{", 2: "bad"}.get(number, "good"))
    assert endpoint(asked.url).send([{}], read) == ["good"]
    asked = serve(lambda *_: "bad")
    assert endpoint(asked.url).send([{}], read) == [NoAnswer(reason="bad at 0")]


def test_a_server_that_never_answers_costs_its_deadline(serve):
    over = threading.Event()

    def answer(body, number):
        if body["n"] == 2:
            over.wait(30)
        return body["n"]

    asked = serve(answer)
    results = send(asked.url, 1, 2, 3, timeout_seconds=2.0, attempts=2)
    over.set()
    assert results == [1, NoAnswer(reason="no response within 2 seconds"), 3]


def test_a_server_that_is_down_is_soon_asked_no_more(serve):
    asked = serve(lambda *_: (500, {}, b"down"))
    results = send(asked.url, *range(100), attempts=2, concurrency=1)
    assert len(asked.bodies) == 2 * MOST_FAILURES
    reasons = [each.reason for each in results]
    assert reasons[:MOST_FAILURES] == ["HTTP 500 down"] * MOST_FAILURES
    assert set(reasons[MOST_FAILURES:]) == {"it was not sent, since 8 others in a row had failed"}
    (refused,) = send("http://127.0.0.1:9", 1)
    assert "cannot be reached" in refused.reason


@pytest.mark.parametrize("status", [307, 401, 403, 404])
def test_a_wrong_address_or_key_stops_the_run(serve, status):
    asked = serve(lambda *_: (status, {}, b"wrong"))
    with pytest.raises(RunError, match=rf"^{asked.url}: HTTP {status} wrong \(.*\)\.$"):
        send(asked.url, *range(20))
    assert len(asked.bodies) <= 4


def test_the_key_is_sent_and_never_shown(serve, monkeypatch):
    monkeypatch.setenv("GRADER_KEY", "sk-123")
    asked = serve(lambda *_: (400, {}, b"no such key: sk-123"))
    (result,) = send(asked.url, 1, key_variable="GRADER_KEY")
    assert asked.headers[0]["Authorization"] == "Bearer sk-123"
    assert result == NoAnswer(reason="HTTP 400 no such key: [key]")
    assert "sk-123" not in repr(endpoint(asked.url, key_variable="GRADER_KEY"))
    send(asked.url, 1)
    assert "Authorization" not in asked.headers[1]


def test_it_works_in_any_thread(serve):
    asked, results = serve(lambda body, _: body["n"]), []
    thread = threading.Thread(target=lambda: results.extend(send(asked.url, 1, 2)))
    thread.start()
    thread.join()
    assert results == [1, 2]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"url": "localhost:8000"}, r"^url=localhost:8000 is not an address: write http://"),
        ({"url": "http://me:secret@host"}, r"^url contains a user name, a password or a token"),
        ({"key_variable": "sk-123"}, r"^key_variable is not the name of an environment variable"),
        ({"key_variable": "NOT_SET"}, r"^key_variable=NOT_SET: this environment variable is not"),
    ],
)
def test_wrong_options_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        endpoint(**{"url": "http://host"} | options)
    assert "secret" not in str(caught.value)
