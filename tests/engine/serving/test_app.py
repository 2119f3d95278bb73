import asyncio
import math

import pytest

from rl4p.base.types import Sampling
from rl4p.engine.serving.active_request import CompletionOptions
from rl4p.engine.serving.app import Guard, HttpRequest, or_null, seeds_of
from rl4p.engine.serving.body import ClientDisconnectError, HttpError
from rl4p.tools.serving.app import ServedApp
from rl4p.tools.serving.vllm import PauseQuery


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({b"host": b"127.0.0.1:8000"}, None),
        ({b"host": b"localhost"}, None),
        ({b"host": b"[::1]:8000"}, None),
        ({b"host": b"evil.example:8000"}, 403),
        ({b"host": b"["}, 403),
        ({}, 403),
        ({b"host": b"localhost:1", b"origin": b"http://localhost:1"}, None),
        ({b"host": b"localhost:1", b"origin": b"http://localhost:2"}, 403),
        ({b"host": b"localhost:1", b"origin": b"https://evil.example"}, 403),
        ({b"host": b"localhost:1", b"origin": b"null"}, 403),
    ],
)
def test_without_a_token_only_this_machine_is_served(headers, status):
    check(Guard(token=None), "/generate", headers, status)


@pytest.mark.parametrize(
    ("path", "given", "status"),
    [
        ("/generate", b"Bearer secret", None),
        ("/generate", b"bearer secret", None),
        ("/generate", b"Bearer wrong", 401),
        ("/generate", b"Basic secret", 401),
        ("/generate", b"secret", 401),
        ("/generate", b"", 401),
        ("/", b"", 401),
        ("/health", b"", None),
    ],
)
def test_with_a_token_it_is_needed_everywhere_but_for_health(path, given, status):
    headers = {b"host": b"any.example", b"authorization": given}
    check(Guard(token="secret"), path, headers, status)


def check(guard, path, headers, status):
    if status is None:
        guard.check(path, headers)
        return
    with pytest.raises(HttpError) as error:
        guard.check(path, headers)
    assert error.value.status == status
    assert "secret" not in str(error.value)


def test_a_query_has_words_for_true_and_false(make_server):
    async def main():
        request = HttpRequest(
            server=make_server(),
            receive=None,
            query_string=b"mode=keep&clear_cache=false",
            content=b"",
        )
        return request.query(PauseQuery)

    assert asyncio.run(main()) == PauseQuery(mode="keep", clear_cache=False)


@pytest.mark.parametrize("leaves", [True, False])
def test_a_watched_request_counts_while_it_is_open(make_server, scheduler, leaves):
    scheduler.holds = True

    async def main():
        server, left = make_server(), asyncio.Event()

        async def receive():
            await left.wait()
            return {"type": "http.disconnect"}

        options = CompletionOptions(sampling=Sampling(), max_tokens=3, end_ids=())
        active = server.start(options, [[1]], [[0, 1]], stream=False)
        request = HttpRequest(server=server, receive=receive, query_string=b"", content=b"")

        async def answer():
            async with request.watched(active):
                assert server.open == 2
                if not leaves:
                    raise KeyError
                left.set()
                await active.finished()

        with pytest.raises(ClientDisconnectError if leaves else KeyError):
            await answer()
        return server.open

    assert asyncio.run(main()) == 0
    assert len(scheduler.cancelled) == 1


def test_the_model_is_listed(ask, chatty):
    (model,) = ask("/v1/models", method="GET")["data"]
    assert model["id"] == "m"
    assert model["root"] == "/path/to/m"
    assert model["max_model_len"] == chatty.decoder.config.max_positions
    assert model["weight_version"] == "7"
    assert model["least_tokens"] == 0


def test_unknown_places_and_methods(ask):
    error = ask("/v2/completions", {}, status=404)["error"]
    assert error["message"] == "/v2/completions does not exist."
    assert error["type"] == "not_found_error"
    error = ask("/v1/completions", method="GET", status=405)["error"]
    assert error["message"] == "/v1/completions does not take GET."


def test_a_body_that_is_too_long_is_refused(run):
    async def call(client, app):
        async def chunks():
            for _ in range(20):
                yield b" " * 100

        long = await client.post("/v1/completions", content=b"{" + b" " * 2000)
        chunked = await client.post("/v1/completions", content=chunks())
        digits = {"Content-Length": "9" * 5000}
        longest = await client.post("/v1/completions", content=chunks(), headers=digits)
        return long, chunked, longest

    for answer in run(call, most_bytes=1000):
        assert answer.status_code == 413
        assert "The body is longer than" in answer.json()["error"]["message"]


def test_a_long_body_is_parsed_too(ask):
    ask("/v1/completions", {"prompt": "a", "user": "b" * 100_000})


def test_what_is_no_json_is_refused(run):
    async def call(client, app):
        return await client.post("/v1/completions", content=b"{")

    answer = run(call)
    assert answer.status_code == 400
    assert "The body is not JSON" in answer.json()["error"]["message"]


def test_a_token_is_asked_for(run):
    async def call(client, app):
        headers = {"Authorization": "Bearer secret"}
        return [
            await client.get("/v1/models"),
            await client.get("/v1/models", headers=headers),
            await client.get("/health"),
        ]

    without, with_token, health = run(call, token="secret")
    assert without.status_code == 401
    assert without.headers["www-authenticate"] == "Bearer"
    assert without.json()["error"]["code"] == "invalid_api_key"
    assert (with_token.status_code, health.status_code) == (200, 200)


def test_an_error_of_the_program_does_not_end_the_server(run, monkeypatch, caplog):
    async def call(client, app):
        async def fails(request):
            raise ZeroDivisionError("a secret")

        app.routes["GET", "/version"] = fails
        return await client.get("/version"), await client.get("/health")

    failed, health = run(call)
    assert failed.status_code == 500
    assert "ZeroDivisionError" in failed.json()["error"]["message"]
    assert "a secret" not in failed.text
    assert "The request to /version failed." in caplog.text
    assert health.status_code == 200


def test_answers_are_counted_by_path_and_status(run):
    async def call(client, app):
        await client.get("/health")
        await client.get("/health")
        await client.get("/nowhere")
        return app.server.responses

    assert run(call) == {("/health", 200): 2, ("other", 404): 1}


class Connection:
    """A client that sends a body and closes the connection when `close` is called."""

    def __init__(self, body):
        self.messages = [{"type": "http.request", "body": body}]
        self.closed = asyncio.Event()
        self.sent = []

    async def receive(self):
        if self.messages:
            return self.messages.pop(0)
        await self.closed.wait()
        return {"type": "http.disconnect"}

    async def send(self, message):
        self.sent.append(message)


@pytest.mark.parametrize("path", ["/v1/completions", "/generate"])
@pytest.mark.parametrize("stream", [b"true", b"false"])
def test_a_client_that_vanishes_frees_its_slots(make_server, scheduler, path, stream):
    scheduler.holds = True

    async def main():
        server = make_server()
        app = ServedApp(server, Guard(token=None), most_bytes=1000)
        name = b"prompt" if path != "/generate" else b"text"
        connection = Connection(b'{"%s": "a", "stream": %s}' % (name, stream))
        scope = {"type": "http", "path": path, "method": "POST", "query_string": b""}
        scope |= {"headers": [(b"host", b"localhost")], "state": {"unsent": lambda: 7}}
        asked = asyncio.ensure_future(app(scope, connection.receive, connection.send))
        while not server.open:
            await asyncio.sleep(0.001)
        connection.closed.set()
        await asked
        return server

    server = asyncio.run(main())
    assert len(scheduler.cancelled) == 1
    assert scheduler.asked[0].unsent() == 7
    assert (server.open, server.disconnects, server.rids) == (0, 1, {})
    assert server.responses == {(path, 499): 1}


def test_a_body_that_does_not_come_is_given_up(make_server, monkeypatch):
    monkeypatch.setattr("rl4p.engine.serving.app.BODY_SECONDS", 0.01)

    async def main():
        app = ServedApp(make_server(), Guard(token=None), most_bytes=1000)
        connection = Connection(b"{")
        connection.messages[0]["more_body"] = True
        scope = {"type": "http", "path": "/generate", "method": "POST", "query_string": b""}
        await app(
            scope | {"headers": [(b"host", b"localhost")]}, connection.receive, connection.send
        )
        return connection.sent[0]["status"]

    assert asyncio.run(main()) == 408


@pytest.mark.parametrize("stream", [True, False])
def test_the_error_of_the_device_reaches_the_client(run, scheduler, stream):
    scheduler.holds = True

    async def call(client, app):
        body = {"prompt": "a", "stream": stream}
        asking = asyncio.ensure_future(client.post("/v1/completions", json=body))
        while not scheduler.open:
            await asyncio.sleep(0.001)
        ((_, _, fail),) = scheduler.open.values()
        fail(RuntimeError("The device failed."))
        return await asking

    answer = run(call)
    assert answer.status_code == (200 if stream else 503)
    assert '"message":"The device failed."' in answer.text


def test_seeds_are_counted_from_the_given_one():
    assert seeds_of(5, 2, 3) == [[5, 6, 7], [5, 6, 7]]
    assert seeds_of(-1, 1, 2) == [[2**63 - 1, 0]]
    random = seeds_of(None, 2, 3)
    assert len({seed for row in random for seed in row}) == 6


def test_json_has_no_infinite_numbers():
    assert [or_null(x) for x in (-1.5, math.nan, -math.inf)] == [-1.5, None, None]


@pytest.fixture
def server(make_server):
    async def main():
        return make_server()

    return asyncio.run(main())


def test_a_length_must_fit_exactly(server):
    server.check_prompt([1] * 100, 28, "prompt")
    with pytest.raises(HttpError, match="128 positions") as error:
        server.check_prompt([1] * 100, 29, "prompt")
    assert (error.value.param, error.value.code) == ("prompt", "context_length_exceeded")


def test_the_room_is_the_slots_and_those_that_may_wait(server):
    server.check_room(8)
    server.open = 3
    server.check_room(5)
    with pytest.raises(HttpError, match="3 completions are running or waiting") as error:
        server.check_room(6)
    assert error.value.status == 429
    with pytest.raises(HttpError, match="takes 8 at a time") as error:
        server.check_room(9)
    assert error.value.status == 400
    server.closing = True
    with pytest.raises(HttpError, match="shutting down"):
        server.check_room(1)


def test_texts_are_encoded_up_to_the_longest_that_may_fit(make_server, chatty):
    async def main(text, longest=20):
        server = make_server()
        server.detokenizer.longest = longest  # of a token; there are 128 positions
        return await server.encode(text, "prompt")

    for text, longest in (("ab" * 1280, 20), ("ab" * 4000, 100)):
        assert asyncio.run(main(text, longest)) == chatty.tokenizer.encode(text)
    with pytest.raises(HttpError, match="2561 characters is longer than the 128 pos") as error:
        asyncio.run(main("a" * 2561))
    assert (error.value.param, error.value.code) == ("prompt", "context_length_exceeded")


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "alternatives", "shown"),
    [(100, 100, 20, False), (100, 1, None, True), (100, 0, None, True)],
)
def test_a_response_has_a_longest_length(make_server, prompt, max_tokens, alternatives, shown):
    async def main():
        server = make_server(slots=10**6)
        options = CompletionOptions(
            sampling=Sampling(), max_tokens=max_tokens, end_ids=(), alternatives=alternatives
        )
        tokens = prompt * shown + max_tokens * (1 + (alternatives or 0))
        count, given = 2**26 // 48 // tokens, {"scored": shown, "shown": shown}
        server.check_size(options, [[1] * prompt], count, **given)
        with pytest.raises(HttpError, match="may have 64 MiB, and at most 64 MiB") as error:
            server.check_size(options, [[1] * prompt], count + 1, **given)
        assert error.value.status == 400

    asyncio.run(main())
