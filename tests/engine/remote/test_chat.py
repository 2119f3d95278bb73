import pytest

from rl4p.base.http import InvalidResponseError
from rl4p.engine.remote.chat import chat_body, read_chat

MESSAGES = [{"role": "user", "content": "1+1"}]


def test_changes_replace_fields_and_none_leaves_them_out():
    body = chat_body("m", MESSAGES, {"top_p": None, "seed": 4, "x": 1}, top_p=0.5, seed=3, n=None)
    assert body == {"model": "m", "messages": MESSAGES, "seed": 4, "x": 1}


def test_the_text_and_the_reason_of_the_first_choice():
    choice = {"message": {"content": "a\ud800b"}, "finish_reason": "length"}
    assert read_chat({"choices": [choice]}) == ("a\N{REPLACEMENT CHARACTER}b", "length")
    assert read_chat({"choices": [{"message": {"content": None}}]}) == (None, None)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ({}, "an answer without a response .KeyError"),
        ({"choices": [3]}, "an answer without a response .TypeError"),
        ({"choices": [{"message": {"content": 3}}]}, "content is no text"),
    ],
)
def test_a_response_without_a_text_is_invalid(response, message):
    with pytest.raises(InvalidResponseError, match=message):
        read_chat(response)
