import asyncio
import math

import pytest

from rl4p.base.types import Sampling
from rl4p.engine.serving.active_request import CompletionOptions
from rl4p.engine.serving.body import HttpError
from rl4p.engine.serving.server_state import or_null, seeds_of


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
