"""Tests how fields are taken that no server enforces, and which are dropped."""

import logging

import pytest

from rl4p.base.types import Sampling
from rl4p.engine.serving.anthropic_messages import MessagesRequest
from rl4p.engine.serving.body import HttpError, validate
from rl4p.engine.serving.chat import ChatRequest
from rl4p.engine.serving.openai_responses import ResponsesRequest
from rl4p.engine.serving.wishes import Wishes, instruction, with_instruction

TURN = [{"role": "user", "content": "1"}]
CHAT = {"messages": TURN}
ITEMS = {"input": "1"}
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}}
NAMED = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
FLAT = {"type": "json_schema", "name": "n", "schema": SCHEMA}


def wishes(drops=("temperature", "top_k", "frequency_penalty", "seed"), formats="prompt"):
    return Wishes(drops=drops, formats=formats, sampling=Sampling(temperature=0.5))


@pytest.mark.parametrize(
    ("model", "fields", "name"),
    [
        (ChatRequest, CHAT | {"tool_choice": "required"}, "tool_choice"),
        (ChatRequest, CHAT | {"tool_choice": {"type": "function"}}, "tool_choice"),
        (ChatRequest, CHAT | {"tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
        (ChatRequest, CHAT | {"parallel_tool_calls": False}, "parallel_tool_calls"),
        (ChatRequest, CHAT | {"response_format": NAMED}, "response_format"),
        (ChatRequest, CHAT | {"response_format": {"type": "json_object"}}, "response_format"),
        (ResponsesRequest, ITEMS | {"text": {"format": FLAT}}, "text.format"),
        (ResponsesRequest, ITEMS | {"parallel_tool_calls": False}, "parallel_tool_calls"),
        (ResponsesRequest, ITEMS | {"tool_choice": "required"}, "tool_choice"),
    ],
)
def test_a_wish_is_taken_and_named_once_by_a_server_of_agents_alone(model, fields, name, caplog):
    with pytest.raises(HttpError, match=name):
        validate(model, fields)
    taken = wishes()
    for _ in range(2):
        validate(model, fields, taken)
    (said,) = caplog.messages
    assert name in said
    assert "not enforced" in said


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "text"}},
        {"tool_choice": "none"},
        {"parallel_tool_calls": True},
        {"temperature": 0.5, "top_k": -1, "frequency_penalty": 0, "seed": None},
    ],
)
def test_nothing_is_said_of_what_changes_nothing(fields, caplog):
    validate(ChatRequest, CHAT | fields, wishes())
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"tool_choice": "sometimes"}, "tool_choice must be auto or none"),
        ({"tool_choice": {"type": "weather"}}, "tool_choice must be auto or none"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls must be true"),
        ({"response_format": {"type": "xml"}}, "response_format.type must be text"),
        ({"response_format": {}}, "response_format.type must be text"),
    ],
)
def test_what_is_no_known_wish_is_refused(fields, sentence):
    with pytest.raises(HttpError, match=sentence):
        validate(ChatRequest, CHAT | fields, wishes())


def test_formats_can_be_refused():
    with pytest.raises(HttpError, match=r"response_format is refused by rollout.server.formats"):
        validate(ChatRequest, CHAT | {"response_format": NAMED}, wishes(formats="refuse"))
    with pytest.raises(HttpError, match=r"text.format is refused by rollout.server.formats"):
        validate(ResponsesRequest, ITEMS | {"text": {"format": FLAT}}, wishes(formats="refuse"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 0.1), ("top_k", 5), ("frequency_penalty", 0.5), ("seed", 7)],
)
def test_what_the_run_decides_is_dropped_and_named_once(name, value, caplog):
    taken = wishes()
    caplog.set_level(logging.WARNING)
    for _ in range(2):
        assert name not in validate(ChatRequest, CHAT | {name: value}, taken).model_fields_set
    assert caplog.messages == [
        f"Requests of agents have {name}={value}, which rollout.server.drops leaves out: the run "
        "decides how tokens are drawn."
    ]
    kept = wishes(drops=())
    if name == "frequency_penalty":  # no run has one
        with pytest.raises(HttpError, match="frequency_penalty is not supported"):
            validate(ChatRequest, CHAT | {name: value}, kept)
    else:
        assert getattr(validate(ChatRequest, CHAT | {name: value}, kept), name) == value


@pytest.mark.parametrize(
    ("fields", "schema"),
    [
        ({"response_format": NAMED}, SCHEMA),
        ({"response_format": {"type": "json_object"}}, None),
        ({"response_format": {"type": "text"}}, "text"),
    ],
)
def test_a_format_is_a_sentence_of_the_prompt(fields, schema):
    sentence = validate(ChatRequest, CHAT | fields, wishes()).instruction
    assert (sentence == "") == (schema == "text")
    assert ('"n": {"type": "integer"}' in sentence) == (schema is SCHEMA)
    assert sentence == "" or sentence.startswith("Answer with one JSON object")


def test_formats_of_all_interfaces_are_the_same_sentence():
    chat = validate(ChatRequest, CHAT | {"response_format": NAMED}, wishes())
    items = validate(ResponsesRequest, ITEMS | {"text": {"format": FLAT}}, wishes())
    assert instruction(items.text) == chat.instruction
    for fields in ({"output_config": {"format": FLAT}}, {"output_format": FLAT}):
        request = validate(MessagesRequest, {"max_tokens": 1, "messages": TURN} | fields)
        assert validate(ChatRequest, request.for_chat(), wishes()).instruction == chat.instruction


@pytest.mark.parametrize(
    ("roles", "place"),
    [
        (["system", "user"], 0),
        (["developer", "user"], 0),
        (["user"], 0),
        (["user", "assistant", "user"], 0),
        (["assistant", "user", "user"], 1),
        (["assistant"], 0),
    ],
)
def test_the_sentence_stands_at_one_place_in_all_turns(roles, place):
    messages = [{"role": role, "content": role} for role in roles]
    asked = with_instruction(messages, "In JSON.")
    assert asked[place]["content"] == f"{roles[place]}\n\nIn JSON."
    assert [x for i, x in enumerate(asked) if i != place] == [
        x for i, x in enumerate(messages) if i != place
    ]
    assert messages[place]["content"] == roles[place]
    later = [*messages, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    if "user" in roles:
        assert with_instruction(later, "In JSON.")[: len(messages)] == asked
