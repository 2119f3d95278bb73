import pytest

from rl4p.model.token_texts import token_texts
from rl4p.model.tokenizer import byte_tokenizer

TEXTS = [
    "1+1=2 #### 2",
    "é",
    "a\N{SNOWMAN}b\N{GRINNING FACE}c",
    "",
    "日本語 テキスト",
    "  two  spaces \n",
]


@pytest.fixture(scope="module")
def tokenizer():
    return byte_tokenizer()


@pytest.mark.parametrize("text", TEXTS)
def test_the_texts_joined_are_the_response(tokenizer, text):
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    texts = token_texts(tokenizer, tokens)
    assert len(texts) == len(tokens)
    assert "".join(texts) == text


def test_the_last_token_of_a_character_has_its_text(tokenizer):
    tokens = tokenizer("aé\N{SNOWMAN}", add_special_tokens=False)["input_ids"]
    assert token_texts(tokenizer, tokens) == ["a", "", "é", "", "", "\N{SNOWMAN}"]


def test_special_tokens_are_seen(tokenizer):
    tokens = [*tokenizer("a", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    assert token_texts(tokenizer, tokens) == ["a", "<|end|>"]


def test_bytes_that_are_no_character_do_not_wait_for_one(tokenizer):
    """A model may draw any bytes."""
    (e,) = (tokenizer.convert_tokens_to_ids(x) for x in "Ċ")  # the newline's name
    lead = tokenizer("é", add_special_tokens=False)["input_ids"][0]
    texts = token_texts(tokenizer, [lead] * 9 + [e])
    assert len(texts) == 10
    assert "".join(texts) == tokenizer.decode([lead] * 9 + [e])
    assert texts[3]
    assert token_texts(tokenizer, [lead]) == ["\N{REPLACEMENT CHARACTER}"]
