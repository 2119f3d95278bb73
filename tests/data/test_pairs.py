"""Tests preference pairs: the forms that are read alike, and their tokens."""

import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Question
from rl4p.data.pairs import encode_preferences, pair_of


def user(text):
    return {"role": "user", "content": text}


def said(text):
    return {"role": "assistant", "content": text}


def read(row, **options):
    options = {"strip_tags": False, "table": False} | options
    keys = ("chosen", "rejected")
    return pair_of(row, "line 1", prompt_key="prompt", keys=keys, **options)


SKY = "What color is the sky?"
CHAT = [user("Hi"), said("Hello"), user(SKY)]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": CHAT, "chosen": [said("Blue.")], "rejected": [said("Green.")]},
        {"chosen": [*CHAT, said("Blue.")], "rejected": [*CHAT, said("Green.")]},
        {"prompt": SKY, "chosen": [*CHAT, said("Blue.")], "rejected": [*CHAT, said("Green.")]},
    ],
    ids=["explicit", "implicit", "implicit beside a text"],
)
def test_conversations(row):
    pair = read(row)
    assert pair.question == SKY
    assert list(pair.messages) == CHAT
    assert pair.responses == (said("Blue."), said("Green."))


@pytest.mark.parametrize(
    ("row", "question", "responses"),
    [
        ({"prompt": "The sky is", "chosen": " blue", "rejected": " green"}, "The sky is", None),
        ({"chosen": "The sky is blue", "rejected": "The sky is green"}, "The sky is", None),
        # As in TRL, the prompt is what both begin with, even within a word.
        (
            {"prompt": None, "chosen": "It is black", "rejected": "It is blue"},
            "It is bl",
            ("ack", "ue"),
        ),
    ],
    ids=["explicit", "implicit", "within a word"],
)
def test_plain_texts(row, question, responses):
    pair = read(row)
    assert pair.question == question
    assert pair.messages is None
    assert pair.responses == (responses or (" blue", " green"))


def test_tags_of_the_user_can_be_removed():
    prompt = [user("<think>2+2</think>")]
    row = {"prompt": prompt, "chosen": [said("4")], "rejected": [said("5")]}
    assert read(row, strip_tags=True).question == "2+2"


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"chosen": "a"}, "must both be texts or both be lists of messages: the row has the fiel"),
        ({"chosen": "ab", "rejected": [said("b")]}, "must both be texts or both be lists"),
        ({"chosen": "a", "rejected": "b"}, "there is no prompt before the texts"),
        ({"prompt": " ", "chosen": "a", "rejected": "b"}, "there is no prompt before the texts"),
        ({"prompt": "1", "chosen": "a", "rejected": "a"}, "are equal, so neither is better"),
        ({"prompt": "1\ud800", "chosen": "a", "rejected": "b"}, "not UTF-8"),
        (
            {"prompt": CHAT, "chosen": [said("a")], "rejected": [said("a")]},
            "are equal, so neither is better",
        ),
        (
            {"prompt": CHAT, "chosen": [said("a"), user("?")], "rejected": [said("b")]},
            '"chosen": one message of the assistant must follow the prompt, not 2 messages',
        ),
        ({"prompt": CHAT, "chosen": [said("a")], "rejected": []}, '"rejected": one message'),
        (
            {"chosen": [user("a"), said("1")], "rejected": [user("b"), said("1")]},
            '"chosen": one message of the assistant must follow the prompt, not 2 messages',
        ),
        ({"prompt": [said("x")], "chosen": [said("a")], "rejected": [said("b")]}, "role user"),
    ],
)
def test_what_is_no_pair_is_refused_with_its_place(row, sentence):
    with pytest.raises(InputError, match=sentence) as caught:
        read(row)
    assert str(caught.value).startswith("line 1")


PREFERENCE_PROMPTS_CHAT = ({"role": "user", "content": "2+2"},)


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
    row = question(PREFERENCE_PROMPTS_CHAT, said("4"), said("five"))
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


@pytest.mark.parametrize(
    "row",
    [
        question(None, "4", "4<|end|>"),
        question(PREFERENCE_PROMPTS_CHAT, said("4"), said("4") | {"name": "Ada"}),
        question(PREFERENCE_PROMPTS_CHAT, said("4"), said("4") | {"id": 1}),
    ],
    ids=["end", "name", "id"],
)
def test_responses_with_the_same_tokens_are_refused(encode, row):
    with pytest.raises(InputError, match=r"Both responses to q \(2\+2\) have the same tokens, so"):
        encode(row)


def test_what_cannot_be_encoded_is_refused(encode):
    with pytest.raises(InputError, match="needs two responses to each question, but q has none"):
        encode(Question(id="q", question="1", answer="1", task="t"))
    with pytest.raises(InputError, match="system_prompt has no effect on the plain texts of q"):
        encode(question(None, "1", "2"), system_prompt="Add.")
