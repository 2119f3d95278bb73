import json

import pytest

URL = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
ROOM = {"max_completion_tokens": 90}


def test_an_answer_is_a_message(ask, scheduler, chatty):
    answer = ask(URL, {"messages": HI, "return_token_ids": True})
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "hello", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert answer["object"] == "chat.completion"
    assert chatty.tokenizer.decode(answer["prompt_token_ids"]) == "u:hi|a:"
    assert choice["token_ids"] == [*chatty.tokenizer.encode("hello"), chatty.end_ids[0]]
    assert answer["usage"] == {"prompt_tokens": 7, "completion_tokens": 6, "total_tokens": 13}
    assert scheduler.asked[0].max_tokens == 128 - 7  # all positions that are left


def test_the_template_has_its_arguments(ask, chatty):
    def prompt(**body):
        answer = ask(URL, {"messages": HI, "return_token_ids": True} | body)
        return chatty.tokenizer.decode(answer["prompt_token_ids"])

    assert prompt(chat_template_kwargs={"mark": "!"}) == "u:hi|a:!"
    assert prompt(add_generation_prompt=False) == "u:hi|"
    assert prompt(tools=[TOOL]) == "[add]u:hi|a:"
    assert prompt(tools=[TOOL], tool_choice="none") == "u:hi|a:"


def test_a_stream_begins_with_the_role_and_has_the_whole_text(ask):
    body = {"messages": HI, "stream": True, "n": 2, "stream_options": {"include_usage": True}}
    *parts, last = ask(URL, body)
    assert parts[0]["object"] == "chat.completion.chunk"
    assert parts[0]["usage"] is None
    for index in range(2):
        own = [p["choices"][0] for p in parts if p["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(x["delta"].get("content", "") for x in own) == "hello"
        assert [x["finish_reason"] for x in own if x["finish_reason"]] == ["stop"]
    assert last["usage"]["completion_tokens"] == 12


def test_a_tool_call_is_part_of_the_message(ask, scheduler):
    scheduler.says = f"I add. {CALL}"
    (choice,) = ask(URL, {"messages": HI, "tools": [TOOL]} | ROOM)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "I add."
    (call,) = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert call["id"]


def test_a_message_of_calls_alone_has_no_content(ask, scheduler):
    scheduler.says = CALL
    (choice,) = ask(URL, {"messages": HI, "tools": [TOOL]} | ROOM)["choices"]
    assert choice["message"]["content"] is None


@pytest.mark.parametrize("size", [1, 5, 200])
def test_a_tool_call_is_streamed_whole(ask, scheduler, size):
    scheduler.says, scheduler.size = f"I add. {CALL}{CALL}", size
    body = {"messages": HI, "tools": [TOOL], "stream": True, "max_completion_tokens": 120}
    deltas = [x["choices"][0] for x in ask(URL, body | {"max_completion_tokens": 107})]
    scheduler.says = CALL
    deltas = [x["choices"][0] for x in ask(URL, body | ROOM)]
    calls = [call for x in deltas for call in x["delta"].get("tool_calls", [])]
    assert [call["index"] for call in calls] == [0]
    assert json.loads(calls[0]["function"]["arguments"]) == {"a": 1}
    assert deltas[-1]["finish_reason"] == "tool_calls"
    assert not any("<tool" in x["delta"].get("content", "") for x in deltas)


@pytest.mark.parametrize("stream", [True, False])
def test_a_call_without_its_end_tag_is_a_call(ask, scheduler, stream):
    scheduler.says = CALL.removesuffix("</tool_call>")
    answer = ask(URL, {"messages": HI, "tools": [TOOL], "stream": stream} | ROOM)
    choice = (answer[-1] if stream else answer)["choices"][0]
    (call,) = choice["delta" if stream else "message"]["tool_calls"]
    assert call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert call.get("index", 0) == 0
    assert choice["finish_reason"] == "tool_calls"


def test_without_tools_a_call_is_text(ask, scheduler):
    scheduler.says = CALL
    (choice,) = ask(URL, {"messages": HI} | ROOM)["choices"]
    assert choice["message"]["content"] == CALL
    assert choice["finish_reason"] == "stop"


def test_a_call_that_was_cut_is_text(ask, scheduler):
    scheduler.says = CALL
    (choice,) = ask(URL, {"messages": HI, "tools": [TOOL], "max_tokens": 20})["choices"]
    assert choice["message"]["content"] == CALL[:20]
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("stream", [True, False])
def test_logprobs_have_bytes_and_alternatives(ask, stream):
    body = {"messages": HI, "logprobs": True, "top_logprobs": 1, "stream": stream}
    answer = ask(URL, body)
    answers = answer if stream else [answer]
    found = [x["choices"][0]["logprobs"] for x in answers]
    content = [token for logprobs in found if logprobs for token in logprobs["content"]]
    assert [token["token"] for token in content] == ["h", "e", "l", "l", "o", "<|end|>"]
    assert content[1]["bytes"] == [101]
    assert content[1]["logprob"] == -2.0
    assert [x["logprob"] for x in content[1]["top_logprobs"]] == [-0.5]


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_message_has_a_limit(ask, name):
    answer = ask(URL, {"messages": HI, name: 2})
    assert answer["choices"][0]["message"]["content"] == "he"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "messages is missing"),
        ({"messages": []}, "messages must be a list that is not empty"),
        ({"messages": [{"role": "a", "content": "b"}]}, "messages[0].role must be one of"),
        ({"messages": HI, "max_tokens": 0}, "max_tokens must be an integer from 1"),
        ({"messages": HI, "max_completion_tokens": 0}, "must be an integer from 1"),
        ({"messages": HI, "max_tokens": 500}, "longer than the 128 positions"),
        ({"messages": HI * 40}, "longer than the 128 positions"),
        ({"messages": HI, "top_logprobs": 2}, "top_logprobs needs logprobs=true"),
        ({"messages": HI, "logprobs": 2}, "logprobs must be true or false"),
        ({"messages": HI, "response_format": {"type": "json_object"}}, "must be text"),
        ({"messages": HI, "tool_choice": "required"}, "tool_choice must be auto or none"),
        ({"messages": HI, "functions": []}, "functions is not a field"),
    ],
)
def test_a_wrong_request_is_refused_in_a_sentence(ask, scheduler, body, message):
    assert message in ask(URL, body, status=400)["error"]["message"]
    assert not scheduler.asked


def test_harmless_fields_are_accepted(ask):
    ask(URL, {"messages": HI, "user": "a", "store": False, "response_format": {"type": "text"},
              "parallel_tool_calls": True, "presence_penalty": 0})  # fmt: skip
