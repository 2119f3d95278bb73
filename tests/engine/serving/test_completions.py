"""Tests requests for tokens after tokens; tests/rollout/test_agent.py makes some."""

import asyncio

import pytest

from rl4p.base.types import Sampling
from rl4p.engine.serving.body import HttpError, validate
from rl4p.engine.serving.completions import GenerationRequest, OpenAIRequest, SamplingFields

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


BODIES = {
    "/v1/completions": {"prompt": [3, 4]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "ab"}]},
}


@pytest.fixture(params=BODIES, ids=["completions", "chat"])
def endpoint(request):
    return request.param, BODIES[request.param] | {"n": 2, "return_token_ids": True}


def test_an_object_and_a_stream_have_the_same_choices(ask, endpoint):
    url, body = endpoint
    whole = ask(url, body)
    *chunks, usage = ask(url, body | {"stream": True, "stream_options": {"include_usage": True}})
    assert usage["usage"] == whole["usage"]
    assert {chunk["id"] for chunk in chunks} == {usage["id"]} != {whole["id"]}
    for index, choice in enumerate(whole["choices"]):
        parts = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        tokens = [token for part in parts for token in part.get("token_ids", ())]
        assert tokens == choice["token_ids"] != []
        assert parts[-1]["finish_reason"] == choice["finish_reason"] == "stop"


def test_a_prompt_counts_once_and_its_samples_each(ask, endpoint):
    url, body = endpoint
    one, two = ask(url, body | {"n": 1})["usage"], ask(url, body)["usage"]
    assert two["prompt_tokens"] == one["prompt_tokens"] > 0
    assert two["completion_tokens"] == 2 * one["completion_tokens"] > 0
    assert two["total_tokens"] == two["prompt_tokens"] + two["completion_tokens"]


URL = "/v1/completions"


def test_a_completion_has_text_reason_and_usage(ask, scheduler):
    answer = ask(URL, {"model": "m", "prompt": "ab", "seed": 5, "temperature": 0.5, "top_p": 0.9})
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (
        "hello",
        "stop",
        None,
    )
    assert choice["logprobs"] is None
    assert choice["weight_versions"] == [{"version": "7", "start": 0, "end": 6}]
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}
    assert answer["object"] == "text_completion"
    (work,) = scheduler.asked
    assert work.seeds == [5]
    assert work.max_tokens == 16
    assert (work.sampling.temperature, work.sampling.top_p, work.sampling.top_k) == (0.5, 0.9, 0)


def test_several_prompts_and_samples_are_numbered_by_prompt_first(ask, scheduler):
    answer = ask(URL, {"prompt": [[1], [2, 3]], "n": 2, "seed": 9, "max_tokens": 3})
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [list(work.tokens) for work in scheduler.asked] == [[1], [2, 3]]
    assert [list(work.seeds) for work in scheduler.asked] == [[9, 10]] * 2
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    assert answer["usage"]["completion_tokens"] == 12


def test_without_a_seed_every_completion_has_another(ask, scheduler):
    ask(URL, {"prompt": ["a", "a"], "n": 2})
    seeds = [seed for work in scheduler.asked for seed in work.seeds]
    assert len(set(seeds)) == 4


def test_tokens_in_and_tokens_out(ask, chatty):
    answer = ask(
        URL, {"prompt": [5, 6], "return_token_ids": True, "logprobs": 0, "prompt_logprobs": 0}
    )
    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == [5, 6]
    assert choice["token_ids"] == [*chatty.tokenizer.encode("hello"), chatty.end_ids[0]]
    assert choice["prompt_logprobs"][0] is None
    assert choice["prompt_logprobs"][1]["6"]["logprob"] == -6.0
    assert choice["logprobs"]["token_logprobs"] == [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]
    assert choice["logprobs"]["tokens"] == ["h", "e", "l", "l", "o", "<|end|>"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3, 4, 5]
    assert choice["logprobs"]["top_logprobs"] is None


def test_alternatives_are_reported_beside_the_drawn_token(ask):
    (choice,) = ask(URL, {"prompt": "a", "logprobs": 2, "return_tokens_as_token_ids": True})[
        "choices"
    ]
    first = choice["logprobs"]["tokens"][0]
    assert first.startswith("token_id:")
    assert choice["logprobs"]["top_logprobs"][0] == {first: -0.5, "token_id:0": -2.0}


@pytest.mark.parametrize("size", [1, 2, 3, 100])
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("stop", "keep", "text", "tokens"),
    [
        ("ll", False, "he", 4),
        (["lo", "ell"], False, "h", 4),
        ("ll", True, "hell", 4),
        ("xyz", False, "hello", 6),
        ("o", False, "hell", 5),
    ],
)
def test_a_stop_string_ends_at_its_last_token_however_tokens_arrive(
    ask, scheduler, size, stream, stop, keep, text, tokens
):
    scheduler.size = size
    body = {"prompt": "a", "stop": stop, "stream": stream, "return_token_ids": True}
    answer = ask(URL, body | {"include_stop_str_in_output": keep, "logprobs": 0})
    choices = [x["choices"][0] for x in (answer if stream else [answer])]
    assert "".join(x["text"] for x in choices) == text
    assert sum(len(x["token_ids"]) for x in choices) == tokens
    assert [y for x in choices for y in x["logprobs"]["token_logprobs"]] == [
        -1.0 - i for i in range(tokens)
    ]
    assert choices[-1]["finish_reason"] == "stop"
    expected = None if tokens == 6 else "ell" if text == "h" else stop
    assert choices[-1]["stop_reason"] == expected


def test_a_stop_string_frees_the_slot_of_its_completion_only(run, scheduler):
    scheduler.holds = True

    async def call(client, app):
        import asyncio

        asking = asyncio.ensure_future(
            client.post(URL, json={"prompt": "a", "stop": "l", "n": 2, "max_tokens": 8})
        )
        while len(scheduler.open) < 2:
            await asyncio.sleep(0.001)
        first, second = scheduler.open
        scheduler.say(first, app.server.detokenizer.tokenizer.encode("al"))
        while not scheduler.cancelled:
            await asyncio.sleep(0.001)
        assert scheduler.cancelled == [first]
        scheduler.go(second, app.server.detokenizer.tokenizer.encode("ok"))
        return (await asking).json()

    answer = run(call)
    assert [x["text"] for x in answer["choices"]] == ["a", "ok"]


def test_a_stream_has_the_texts_and_tokens_of_the_whole_answer(ask, chatty):
    body = {"prompt": [3], "stream": True, "return_token_ids": True, "logprobs": 1}
    *parts, last = ask(URL, body | {"stream_options": {"include_usage": True}})
    assert "".join(part["choices"][0]["text"] for part in parts) == "hello"
    tokens = [token for part in parts for token in part["choices"][0]["token_ids"]]
    assert tokens == [*chatty.tokenizer.encode("hello"), chatty.end_ids[0]]
    assert parts[0]["choices"][0]["prompt_token_ids"] == [3]
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"
    offsets = [x for part in parts for x in part["choices"][0]["logprobs"]["text_offset"]]
    assert offsets == [0, 1, 2, 3, 4, 5]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 6


def test_no_tokens_are_generated_if_none_are_asked_for(ask, scheduler):
    answer = ask(URL, {"prompt": [5, 6], "max_tokens": 0, "prompt_logprobs": 0})
    assert answer["choices"][0]["prompt_logprobs"][1]["6"]["logprob"] == -6.0
    assert answer["usage"]["completion_tokens"] == 0
    assert not scheduler.asked


def test_end_tokens_are_those_of_the_model_and_of_the_request(ask, scheduler, chatty):
    ask(URL, {"prompt": "a", "stop_token_ids": [7]})
    ask(URL, {"prompt": "a", "stop_token_ids": [7], "ignore_eos": True})
    assert [work.end_ids for work in scheduler.asked] == [(*chatty.end_ids, 7), (7,)]


def test_a_stop_token_of_the_request_is_the_stop_reason(ask):
    (choice,) = ask(URL, {"prompt": "a", "stop_token_ids": [7], "ignore_eos": True})["choices"]
    assert choice["stop_reason"] == 7


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "prompt is missing"),
        (
            {"prompt": []},
            "prompt must be a text, a list of token ids, or a list of at most 16384 of these",
        ),
        ({"prompt": ""}, "The prompt is empty"),
        ({"prompt": [[]]}, "The prompt is empty"),
        ({"prompt": [1, "a"]}, "prompt must be"),
        ({"prompt": [[1], [-1]]}, "prompt must be"),
        ({"prompt": [99999]}, "prompt must be"),
        ({"prompt": [True]}, "prompt must be"),
        ({"prompt": {"a": 1}}, "prompt must be"),
        ({"prompt": "\ud800"}, "The body is not JSON"),
        ({"prompt": "a" * 200}, "longer than the 128 positions of the model"),
        ({"prompt": "a", "max_tokens": 128}, "longer than the 128 positions"),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens must be an integer from 0"),
        ({"prompt": "a", "max_tokens": "3"}, "max_tokens must be an integer"),
        (
            {"prompt": "a", "temperature": -1},
            "temperature must be 0, which is greedy, or",
        ),
        ({"prompt": "a", "temperature": 1e-9}, "temperature must be 0, which is greedy"),
        ({"prompt": "a", "top_p": 0}, "top_p must be a number from 0.000001 to 1"),
        ({"prompt": "a", "top_p": 2}, "top_p must be a number from 0.000001 to 1"),
        ({"prompt": "a", "n": 0}, "n must be an integer from 1"),
        ({"prompt": "a", "n": 9}, "asks for 9 completions, but the server takes 8"),
        ({"prompt": "a", "n": 2**31}, "n must be an integer from 1 to 2147483647"),
        ({"prompt": "a", "top_k": 2**31}, "top_k must be an integer from -1 to 2147483647"),
        ({"prompt": "a", "max_tokens": 2**31}, "max_tokens must be an integer from 0"),
        ({"prompt": "a", "stop_token_ids": [7] * 129}, "stop_token_ids must be a list of at most"),
        ({"prompt": "a", "stop_token_ids": [99999]}, "stop_token_ids must be a list of token ids"),
        ({"prompt": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens must be -1"),
        ({"prompt": ["a"] * 5, "n": 2}, "asks for 10 completions, but the server takes 8"),
        ({"prompt": "a", "stop": [""]}, "stop must be a string or at most 16 strings"),
        (
            {"prompt": "a", "stop": "b", "min_tokens": 1},
            "min_tokens must be at most 0, beside",
        ),
        (
            {"prompt": "a", "min_tokens": 17},
            "min_tokens must be at most 16, the limit",
        ),
        ({"prompt": "a", "logprobs": 21}, "logprobs must be an integer from 0 to 20"),
        ({"prompt": "a", "logprobs": True}, "logprobs must be an integer"),
        ({"prompt": "a", "echo": True}, "echo must be false: prompt_logprobs=0 returns"),
        ({"prompt": "a", "suffix": "b"}, "suffix is not supported"),
        ({"prompt": "a", "best_of": 3}, "best_of is not supported"),
        ({"prompt": "a", "logit_bias": {"5": 1}}, "logit_bias is not supported"),
        ({"prompt": "a", "frequency_penalty": 1}, "frequency_penalty is not supported"),
        ({"prompt": "a", "temprature": 1}, "temprature is not a field"),
        ({"prompt": "a", "prompt_logprobs": 1}, "prompt_logprobs must be 0"),
        ({"prompt": "a", "prompt_logprobs": 0, "stream": True}, "do not go together"),
        ({"prompt": "a", "stream_options": {}}, "stream_options needs stream=true"),
        ({"prompt": "a", "stream": True, "stream_options": {"a": 1}}, "stream_options.a is not"),
        ([], "The body must be a JSON object"),
    ],
)
def test_a_wrong_request_is_refused_in_a_sentence(ask, scheduler, body, message):
    error = ask(URL, body, status=400)["error"]
    assert message in error["message"]
    assert error["type"] == "invalid_request_error"
    assert not scheduler.asked


def test_another_model_is_not_found(ask):
    error = ask(URL, {"model": "gpt", "prompt": "a"}, status=404)["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")


def test_fields_that_change_nothing_are_accepted(ask):
    ask(URL, {"prompt": "a", "user": "b", "frequency_penalty": 0, "best_of": 1, "logit_bias": {},
              "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "suffix": None})  # fmt: skip


def test_too_many_completions_have_to_come_back_later(run, scheduler):
    scheduler.holds = True

    async def call(client, app):
        import asyncio

        asking = asyncio.ensure_future(client.post(URL, json={"prompt": "a", "n": 8}))
        while app.server.open < 8:
            await asyncio.sleep(0.001)
        refused = await client.post(URL, json={"prompt": "a"})
        scheduler.abort()
        return refused, (await asking).json()

    refused, answer = run(call)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"abort"}


def test_broken_weights_are_said(ask, scheduler):
    scheduler.broken = "The weights could not be replaced."
    error = ask(URL, {"prompt": "a"}, status=503)["error"]
    assert error["message"] == "The weights could not be replaced."
    assert error["type"] == "server_error"


def test_scores_count_in_the_limits(ask):
    body = {"prompt": [[1, 2]] * 8, "max_tokens": 0, "prompt_logprobs": 0}
    assert len(ask(URL, body)["choices"]) == 8
    error = ask(URL, body | {"prompt": [[1, 2]] * 9}, status=400)["error"]
    assert "takes 8 at a time" in error["message"]
    error = ask(URL, body | {"max_tokens": 1}, status=400)["error"]
    assert "asks for 16 completions" in error["message"]


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({}, "token_ids is missing"),
        ({"token_ids": [1], "stream": True}, "stream must be false"),
        ({"token_ids": [-1]}, "token_ids"),
        ({"token_ids": [1], "features": {"image": 1}}, "features is not supported"),
    ],
)
def test_what_is_not_supported_is_refused(fields, sentence):
    with pytest.raises(HttpError, match=sentence):
        validate(GenerationRequest, fields)


def test_a_request_has_the_tokens_and_their_sampling():
    request = validate(GenerationRequest, {"token_ids": [1], "sampling_params": {"top_p": 1.0}})
    assert (request.token_ids, request.sampling_params) == ([1], {"top_p": 1.0})
