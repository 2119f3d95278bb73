"""Tests that the rows of conversations have the tokens of texts that are tokenized as wholes."""

import random
from dataclasses import replace

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rl4p.base.errors import InputError
from rl4p.data.conversation import TAGS, Row, Template
from rl4p.data.tokenized_text import TokenizedText, tokens_behind
from rl4p.model.tokenizer import byte_tokenizer
from tests.data.test_conversation import TAGGED, TAGGED_WITH_NEWLINE, TAGGED_WITHOUT_END
from tests.support.chats import MODELS, model

STRIPS = (
    "{% for m in messages %}{{ '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
WITHOUT_TOKENS = (
    "{% for m in messages %}{{ m.role + ': ' + m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
THOUGHTLESS = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if loop.last and m.role == 'assistant' %}thoughts {% endif %}{{ m.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def bytes_with(template, **strips):
    tokenizer = byte_tokenizer()
    names = ("<|end|>", "<|user|>", "<|assistant|>") if strips else ()
    strips = {"normalized": False} | strips
    tokens = [AddedToken(name, special=True, **strips) for name in names]
    tokenizer.add_tokens(tokens, special_tokens=True)
    tokenizer.chat_template = template
    return tokenizer, [tokenizer.convert_tokens_to_ids("<|end|>")]


KINDS = {
    **{name: lambda name=name: model(name) for name in MODELS},
    "tags": lambda: model("qwen2_5", TAGGED),
    "tags without ends": lambda: model("qwen2_5", TAGGED_WITHOUT_END),
    "tags with lines": lambda: model("qwen2_5", TAGGED_WITH_NEWLINE),
    "strips right": lambda: bytes_with(STRIPS, rstrip=True),
    "strips left": lambda: bytes_with(STRIPS, lstrip=True),
    "single words": lambda: bytes_with(STRIPS, single_word=True),
    "no tokens": lambda: bytes_with(WITHOUT_TOKENS),
    "other last message": lambda: bytes_with(THOUGHTLESS),
}


def prefixed(scheme):
    """Returns a tokenizer that puts a space before texts, as those of SentencePiece do."""
    vocabulary = {x: i for i, x in enumerate(("<unk>", "<|end|>", "▁", "\n"))}
    for code in range(33, 127):
        vocabulary.setdefault(chr(code), len(vocabulary))
    backend = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    options = {"replacement": "▁", "prepend_scheme": scheme, "split": False}
    backend.pre_tokenizer = pre_tokenizers.Metaspace(**options)
    backend.decoder = decoders.Metaspace(**options)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = STRIPS
    return tokenizer, [tokenizer.eos_token_id]


ENDS = KINDS | {
    "longer tokens": lambda: bytes_with(STRIPS, normalized=False),
    **{scheme: lambda scheme=scheme: prefixed(scheme) for scheme in ("first", "always", "never")},
}


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


def test_the_tokens_before_each_place_are_those_of_the_beginning():
    for kind in ("qwen2_5", "llama3", "gemma3", "mistral", "strips right", "strips left"):
        tokenizer, _ = KINDS[kind]()
        string = tokenizer.apply_chat_template(talk(3, 3), tokenize=False)
        text = TokenizedText(tokenizer, string)
        for place in range(len(string) + 1):
            part = tokenizer(string[:place], add_special_tokens=False)["input_ids"]
            expected = len(part) if text.tokens[: len(part)] == part else None
            assert text.before(place) == expected, (kind, string[:place])
