"""Tests that the rows of conversations have the tokens of texts that are tokenized as wholes."""

import random
from dataclasses import replace

import pytest
from tokenizers import AddedToken

from rl4p.base.errors import InputError
from rl4p.data.conversation import TAGS, Row, Template
from rl4p.data.tokenized_text import TokenizedText, tokens_behind
from tests.support.seams import ENDS, KINDS


@pytest.mark.parametrize("kind", ENDS)
def test_what_follows_an_end_token_has_the_tokens_of_the_whole_text(kind):
    tokenizer, end_ids = ENDS[kind]()
    if kind == "longer tokens":
        tokenizer.add_tokens(AddedToken("<|end|>\n", special=True, normalized=False))
    end = tokenizer.convert_ids_to_tokens(end_ids[0])
    for rest in ("", "more", " more", "\n<|user|>\nmore", "\n\n", "</s> x", end, f" {end}\n{end}"):
        before = tokenizer(f"Hello{end}", add_special_tokens=False)["input_ids"]
        whole = tokenizer(f"Hello{end}{rest}", add_special_tokens=False)["input_ids"]
        behind = tokens_behind(tokenizer, before, rest)
        if kind == "longer tokens" and rest.startswith("\n"):  # what is sampled stays
            whole = [*before, *tokenizer(rest, add_special_tokens=False)["input_ids"]]
        assert [*before, *behind] == whole, rest
        assert tokens_behind(tokenizer, [], rest) == tokens_behind(tokenizer, before[:1], rest)


def talk(seed, turns):
    """Returns a conversation of texts in which spaces, lines and special tokens meet at ends."""
    draw = random.Random(seed)
    words = ["a", "dog", " ", "\n", "  ", "<|end|>", "<|user|>", "</s>", "<|im_end|>", "é", "!"]
    messages = []
    for turn in range(turns):
        for role in ("user", "assistant"):
            text = "".join(draw.choices(words[: 11 if role == "user" else 5], k=draw.randint(1, 6)))
            messages.append({"role": role, "content": f"x{text}{turn}"})
    return messages


def last_row(template, messages):
    """Returns the row of the last message, with each beginning tokenized as a whole."""
    source = template.tokenizer.get_chat_template()
    tagged = TAGS.search(source) is not None
    cut = template.cut_by_tags if tagged else template.cut_by_generation_prompt
    text, cuts = cut(messages, source) if tagged else cut(messages)
    tokens, *parts = (
        template.tokenizer(each, add_special_tokens=False)["input_ids"]
        for each in (text, *(text[:place] for place in cuts))
    )
    if any(tokens[: len(part)] != part for part in parts):
        raise InputError("a token crosses a place")
    ends = [*map(len, parts), *([] if tagged else [len(tokens)])]
    ranges = list(zip(ends[::2], [*ends[1:-1:2], min(ends[-1] + 1, len(tokens))], strict=True))
    places = (i for each in ranges for i in range(*each))
    end = next((i + 1 for i in places if tokens[i] in template.end_ids), None)
    if end is None:
        raise InputError("no end token")
    trained = tuple((start, min(stop, end)) for start, stop in ranges if start < end)
    return Row(messages=len(messages), tokens=tokens[:end], begins=ends[0], trained=trained)


def rows_one_by_one(template, messages):
    merged = []
    for count in range(len(messages), 0, -2):
        row = last_row(template, messages[:count])
        if merged and merged[-1].tokens[: len(row.tokens)] == row.tokens:
            merged[-1] = replace(merged[-1], trained=(*row.trained, *merged[-1].trained))
        else:
            merged.append(row)
    return merged[::-1]


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except InputError:
        return InputError


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_conversations_tokenized_one_by_one(kind):
    tokenizer, end_ids = KINDS[kind]()
    template = Template(tokenizer=tokenizer, end_ids=end_ids, arguments={})
    rows = 0
    for seed in range(40):
        messages = talk(seed, turns=1 + seed % 5)
        expected = outcome(rows_one_by_one, template, messages)
        assert outcome(template.rows, messages) == expected
        rows += expected is not InputError
    assert rows > 8 or kind == "single words"


@pytest.mark.parametrize("kind", ["qwen2_5", "llama3", "gemma3", "mistral", "tags", "strips right"])
def test_a_conversation_of_many_turns_is_tokenized_twice_at_most(kind, monkeypatch):
    tokenizer, end_ids = KINDS[kind]()
    template = Template(tokenizer=tokenizer, end_ids=end_ids, arguments={})
    messages = [
        {"role": role, "content": f"{turn} the dog runs over a big red house and sees trees" * 3}
        for turn in range(30)
        for role in ("user", "assistant")
    ]
    tokenized = []
    plain = TokenizedText.tokenize
    monkeypatch.setattr(
        TokenizedText, "tokenize", lambda self, text: tokenized.append(text) or plain(self, text)
    )
    (row,) = template.rows(messages)
    assert len(row.trained) == 30
    assert sum(map(len, tokenized)) < 2 * max(map(len, tokenized))


@pytest.mark.slow
def test_the_tokens_before_each_place_are_those_of_the_beginning():
    for kind in ("qwen2_5", "llama3", "gemma3", "mistral", "strips right", "strips left"):
        tokenizer, _ = KINDS[kind]()
        string = tokenizer.apply_chat_template(talk(3, 3), tokenize=False)
        text = TokenizedText(tokenizer, string)
        for place in range(len(string) + 1):
            part = tokenizer(string[:place], add_special_tokens=False)["input_ids"]
            expected = len(part) if text.tokens[: len(part)] == part else None
            assert text.before(place) == expected, (kind, string[:place])
