import pytest

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
