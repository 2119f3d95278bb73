"""Tests the tokens of preference pairs, with and without a chat template."""

import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.data.preference_prompts import encode_preferences


def said(text):
    return {"role": "assistant", "content": text}


CHAT = ({"role": "user", "content": "2+2"},)


@pytest.fixture
def encode(policy):
    def encode(*questions, system_prompt=None, max_prompt_tokens=32):
        return encode_preferences(
            questions,
            policy.tokenizer,
            system_prompt=system_prompt,
            max_prompt_tokens=max_prompt_tokens,
            end_ids=policy.end_ids,
        )

    return encode


def question(messages, *pair, text="2+2"):
    return Question(id="q", question=text, answer="", task="t", messages=messages, pair=pair)


def texts(policy, prompt):
    return [policy.tokenizer.decode(list(x)) for x in (prompt.tokens, *prompt.responses)]


@pytest.mark.parametrize("system", [None, "Add."])
def test_messages_are_in_the_chat_template(policy, encode, system):
    row = question(CHAT, said("4"), said("five"))
    (prompt,), dropped = encode(row, system_prompt=system)
    before = "" if system is None else "<|system|>Add.<|end|>"
    asked = f"{before}<|user|>2+2<|end|><|assistant|>"
    assert texts(policy, prompt) == [asked, "4<|end|>", "five<|end|>"]
    assert (dropped, prompt.system_prompt) == (0, system)


def test_plain_texts_are_not_and_end_with_an_end_token(policy, encode):
    row = question(None, "=4", "=5<|end|>", text="2+2")
    (prompt,), _ = encode(row)
    # Both begin with "=", which is no token of the prompt alone.
    assert texts(policy, prompt) == ["2+2", "=4<|end|>", "=5<|end|>"]


def test_long_prompts_are_dropped_and_repeated_questions_stay(encode):
    short, long = question(None, "1", "2", text="1"), question(None, "1", "2", text="1" * 40)
    prompts, dropped = encode(short, long, short)
    assert (len(prompts), dropped) == (2, 1)
    assert prompts[0] is prompts[1]
    with pytest.raises(InputError, match="max_prompt_tokens=3 is too small"):
        encode(long, max_prompt_tokens=3)


def test_what_cannot_be_encoded_is_refused(encode):
    with pytest.raises(InputError, match="needs two responses to each question, but q has none"):
        encode(Question(id="q", question="1", answer="1", task="t"))
    with pytest.raises(InputError, match="system_prompt has no effect on the plain texts of q"):
        encode(question(None, "1", "2"), system_prompt="Add.")
