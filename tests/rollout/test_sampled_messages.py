"""Tests that messages of a policy are recognized in the forms in which clients send them back."""

import pytest

from rl4p.rollout.sampled_messages import SampledMessages

USER = {"role": "user", "content": "go"}


def said(content, *calls, **fields):
    """Returns a message with calls (id, name, arguments)."""
    made = [{"id": i, "function": {"name": n, "arguments": a}} for i, n, a in calls]
    return {"role": "assistant", "content": content, "tool_calls": made, **fields}


LOOK = ("c1", "look", {"n": 12.0, "at": {"b": 1, "a": [1.0, True]}})
SENT = said("I look.", LOOK)


@pytest.mark.parametrize(
    ("back", "known"),
    [
        (SENT, True),
        (said("I look.", (None, *LOOK[1:])), True),
        (said("I look.", (None, "look", {"at": {"a": [1, True], "b": 1}, "n": 12})), True),
        (said("I look.", (None, "look", {"at": {"a": [1, 1], "b": 1}, "n": 12})), False),
        (said("I look.", ("c1", "look", {"n": 12, "unit": "none"})), True),
        (said("", ("c1", "look", {})), True),
        (said(None, ("c1", "look", {})), True),
        (said("  I\nlook.", LOOK), True),
        (said("", ("c2", *LOOK[1:])), False),
        (said("", ("c1", "read", LOOK[2])), False),
        (said("", LOOK, ("c2", "look", {})), False),
        (said("I do not look.", LOOK), False),
        ({"role": "user", "content": "I look."}, False),
    ],
)
def test_a_message_with_calls_is_known_by_ids_or_by_words(back, known):
    messages = SampledMessages()
    messages.add(SENT, "the text", [USER])
    assert messages.text_of(back, [USER]) == ("the text" if known else None)


@pytest.mark.parametrize("calls", [(), (LOOK,)])
@pytest.mark.parametrize(
    ("back", "known"),
    [
        ({"content": "<think>\nhm\n</think>\n\nYes."}, True),
        ({"content": "<think>hm</think>Yes."}, True),
        ({"content": "Yes.", "reasoning_content": "hm"}, True),
        ({"content": "Yes.", "reasoning": "\nhm\n"}, True),
        ({"content": "Yes.", "thinking": "other"}, False),
        ({"content": "No."}, False),
    ],
)
def test_moved_thoughts_are_known(back, known, calls):
    messages = SampledMessages()
    messages.add(said("<think>\nhm\n</think>\n\nYes.", *calls), "the text", [])
    assert (messages.text_of(said("", *calls) | back, []) is not None) == known


def test_thoughts_may_be_left_out_beside_calls_alone():
    messages = SampledMessages()
    messages.add(said("<think>hm</think>Yes.", LOOK), "the text", [])
    messages.add(said("<think>hm</think>Yes."), "the other", [])
    assert messages.text_of(said("Yes.", LOOK), []) == "the text"
    assert messages.text_of(said("Yes."), []) is None


def test_equal_messages_have_the_text_of_their_place():
    messages, one = SampledMessages(), said("look")
    messages.add(one, "first", [USER])
    messages.add(one, "second", [USER, one, USER])
    history = [USER, one, USER, one]
    assert [messages.text_of(history[i], history[:i]) for i in (1, 3)] == ["first", "second"]
    messages.add(one, "again", [USER])  # the client asked again
    assert messages.text_of(one, [USER]) == "again"
    # Of two conversations, each has its own.
    other = said("other")
    messages.add(other, "other", [USER])
    messages.add(one, "third", [USER, other, USER])
    assert messages.text_of(one, [USER, other, USER]) == "third"
    assert messages.text_of(one, [USER, one, USER]) == "second"
    assert messages.text_of(one, [said("unknown")]) == "third"


def test_calls_may_come_back_in_another_order():
    messages, other = SampledMessages(), ("c2", "read", {})
    messages.add(said("", LOOK, other), "both", [])
    assert messages.text_of(said("", other, LOOK), []) == "both"
    assert messages.text_of(said("", LOOK), []) is None
    assert messages.text_of(said("", ("c1", "read", {}), ("c2", "look", {})), []) is None
    assert messages.text_of(said("", LOOK, LOOK), []) is None


def test_equal_calls_have_the_texts_of_their_ids():
    messages = SampledMessages()
    for number in range(3):
        messages.add(said("", (f"c{number}", "look", {})), f"text {number}", [])
    texts = [messages.text_of(said("", (f"c{i}", "look", {"a": 1})), []) for i in (2, 0, 1)]
    assert texts == ["text 2", "text 0", "text 1"]


def written(content, *calls):
    """Returns a message as smolagents sends it back: its calls are part of the text."""
    made = [
        {"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a in calls
    ]
    return {"role": "assistant", "content": f"{content}Calling tools:\n{made}"}


READ = ("c2", "read", {})


@pytest.mark.parametrize(
    ("sent", "back", "known"),
    [
        (SENT, written("I look.\n", LOOK), True),
        (SENT, written("", LOOK), True),
        (SENT, written("I look.\n", ("c1", "look", {"n": 1, "text": "it's"})), True),
        (said("", LOOK, READ), written("", LOOK, READ), True),
        (said("<think>hm</think>Yes.", LOOK), written("Yes.\n", LOOK), True),
        (SENT, written("I do not look.\n", LOOK), False),
        (SENT, written("I look.\n", ("c3", "look", {})), False),
        (SENT, written("I look.\n", ("c1", "read", {})), False),
        (SENT, written("I look.\n", LOOK, READ), False),
        (SENT, {**written("I look.\n", LOOK), "role": "user"}, False),
        (SENT, {"role": "assistant", "content": "Calling tools:\n[]"}, False),
    ],
)
def test_calls_that_a_client_writes_into_the_text_are_known_by_ids(sent, back, known):
    messages = SampledMessages()
    messages.add(sent, "the text", [USER])
    assert messages.text_of(back, [USER]) == ("the text" if known else None)


def test_a_sampled_text_about_calls_is_known_by_its_words():
    messages, text = SampledMessages(), written("", LOOK)
    messages.add(text, "the text", [USER])
    assert messages.text_of(text, [USER]) == "the text"
