import asyncio
import math

import pytest

from rl4p.serving.http_errors import HttpError
from rl4p.serving.server_state import or_null, seeds_of


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


def test_texts_are_encoded_however_long(make_server, chatty):
    async def main(text):
        return await make_server().encode(text)

    for text in ("ab", "ab" * 4000):
        assert asyncio.run(main(text)) == chatty.tokenizer.encode(text)


def test_the_error_of_a_score_is_a_refusal(make_server, scheduler, monkeypatch):
    def score(tokens, deliver):
        deliver(RuntimeError("The device failed."))

    async def main():
        server = make_server()
        assert math.isnan((await server.score([1, 2]))[0])
        monkeypatch.setattr(scheduler, "score", score, raising=False)
        with pytest.raises(HttpError, match="The device failed") as error:
            await server.score([1, 2])
        assert error.value.status == 503

    asyncio.run(main())
