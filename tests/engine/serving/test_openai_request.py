import asyncio

import pytest

from rl4p.base.types import Sampling
from rl4p.engine.serving.body import validate
from rl4p.engine.serving.http_errors import HttpError
from rl4p.engine.serving.openai_request import OpenAIRequest, SamplingFields

HARMLESS = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
            "prompt_cache_retention", "priority", "request_id", "cache_salt")  # fmt: skip


@pytest.mark.parametrize(
    "given", [{"top_k": -2}, {"top_k": 2**31}, {"top_p": -1}, {"temperature": float("inf")}]
)
def test_a_wrong_distribution_is_refused(given):
    with pytest.raises(HttpError, match=f"^{next(iter(given))} must be"):
        validate(SamplingFields, given)


def options(make_server, body, max_tokens, alternatives=None):
    async def main():
        request = validate(OpenAIRequest, body)
        return request, request.completion_options(make_server(), max_tokens, alternatives)

    return asyncio.run(main())


def test_the_defaults_are_those_of_the_api(make_server):
    assert options(make_server, {}, 5)[1].sampling == Sampling(temperature=1.0, top_k=0, top_p=1.0)
    given = {"temperature": 0, "top_k": 5, "top_p": 0.5}
    sampling = options(make_server, given, 5)[1].sampling
    assert sampling == Sampling(temperature=0.0, top_k=5, top_p=0.5)
    assert type(sampling.temperature) is float
    assert options(make_server, {"top_k": -1}, 5)[1].sampling.top_k == 0


def test_the_fields_become_options_of_completions(make_server, chatty):
    request, given = options(
        make_server,
        {"model": "m", "n": 2, "seed": -1, "stop": "a", "stop_token_ids": [7], "best_of": 2,
         "stream": True, "stream_options": {"include_usage": True}} | dict.fromkeys(HARMLESS, "x"),
        5,
        alternatives=3,
    )  # fmt: skip
    assert (request.n, request.seed, request.stream, request.usage) == (2, -1, True, True)
    assert (given.max_tokens, given.alternatives, given.stops) == (5, 3, ("a",))
    assert given.end_ids == (*chatty.end_ids, 7)
    assert given.skip_special
    assert options(make_server, {}, 5)[1].alternatives is None


def test_a_minimum_above_the_limit_is_refused(make_server):
    assert options(make_server, {"min_tokens": 6}, 6)[1].min_tokens == 6
    with pytest.raises(HttpError, match="min_tokens must be at most 5, the limit"):
        options(make_server, {"min_tokens": 6}, 5)


def test_stop_tokens_are_in_the_vocabulary(make_server):
    with pytest.raises(HttpError, match="stop_token_ids must be a list of token ids") as error:
        options(make_server, {"stop_token_ids": [99999]}, 5)
    assert error.value.param == "stop_token_ids"
