from itertools import combinations, pairwise

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from rl4p.base.types import Finish, Sampling
from rl4p.engine.detokenizer import LONG, Detokenizer, IncrementalDetokenizer, StopStrings, overlap
from rl4p.engine.sequence import Chunk
from rl4p.engine.serving.active_request import Choice, CompletionOptions
from rl4p.model.tokenizer import byte_tokenizer


@pytest.fixture(scope="module")
def texts():
    return Detokenizer(byte_tokenizer())


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = ["▁", *"abcdefghij", "é", "日"]
MERGES = [("▁", "a"), ("▁", "b"), ("▁b", "e"), ("c", "d")]


def with_byte_fallback(kind):
    """Returns a tokenizer like Llama 2's or Gemma's: other characters are tokens of bytes."""
    pieces = ["<unk>", *BYTES, *LETTERS, *map("".join, MERGES)]
    if kind == "bpe":
        vocabulary = {piece: number for number, piece in enumerate(pieces)}
        model = models.BPE(
            vocab=vocabulary, merges=MERGES, byte_fallback=True, unk_token="<unk>", fuse_unk=True
        )
    else:
        model = models.Unigram([(x, -len(x)) for x in pieces], unk_id=0, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    return Detokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>"))


@pytest.fixture(scope="module", params=["bpe", "unigram"])
def fallback(request):
    return with_byte_fallback(request.param)


def streamed(texts, tokens, size, skip_special=True):
    reader = IncrementalDetokenizer(texts, skip_special=skip_special)
    found = [reader.feed(tokens[at : at + size]) for at in range(0, len(tokens), size)]
    return [*found, reader.flush()]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("skip_special", [True, False])
def test_parts_joined_are_the_text_of_all_tokens(texts, size, skip_special):
    tokenizer = texts.tokenizer
    random = np.random.default_rng(0)
    rows = [random.integers(0, len(tokenizer), 90).tolist() for _ in range(20)]
    rows += [tokenizer.encode("schön 日本語 👩‍🚀 " * 6), [tokenizer.encode("é")[0]] * 40]
    for tokens in rows:
        whole = tokenizer.decode(tokens, skip_special_tokens=skip_special)
        assert texts.decode(tokens, skip_special=skip_special) == whole
        assert "".join(streamed(texts, tokens, size, skip_special)) == whole


@pytest.mark.quick(4)
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_parts_joined_are_any_text_with_a_fallback_to_bytes(fallback, size):
    random = np.random.default_rng(size)
    alphabet = [*"abcdefghij  be", "é", "日", "本", "🙂", "👩‍🚀", "\ufffd", "\u0301", "🇩🇪"]
    texts = ["a🙂a", "🙂", *("".join(random.choice(alphabet, 60)) for _ in range(20))]
    texts += ["".join(chr(x) for x in random.integers(0x80, 0xD7FF, 40)) for _ in range(20)]
    for text in texts:
        tokens = fallback.backend.encode(text).ids
        assert fallback.decode(tokens).lstrip(" ") == text.lstrip(" ")
        parts = streamed(fallback, tokens, size)
        assert "".join(parts) == fallback.decode(tokens), text
        for stop in ("🙂", "a", "本b"):
            expected = fallback.decode(tokens).partition(stop)[0]
            assert choice_text(fallback, tokens, size, stop) == expected


def choice_text(texts, tokens, size, stop):
    """Returns the text of a choice whose tokens arrive in parts."""
    options = CompletionOptions(sampling=Sampling(), max_tokens=999, end_ids=(), stops=(stop,))
    choice = Choice(texts, options, stream=False)
    for at in range(0, len(tokens), size):
        part = tokens[at : at + size]
        finish = Finish.LENGTH if at + size >= len(tokens) else None
        choice.add(Chunk(None, part, [0.0] * len(part), [], finish))
    return choice.text()


def test_the_window_of_a_long_text_stays_short(fallback):
    reader = IncrementalDetokenizer(fallback)
    tokens = fallback.backend.encode("a日🙂é be " * 40).ids
    lengths = [reader.feed([token]) and len(reader.window) for token in tokens]
    assert max(length for length in lengths if length) < 2 * LONG


def test_a_character_is_held_back_until_it_is_complete(texts):
    tokens = texts.tokenizer.encode("aé")
    reader = IncrementalDetokenizer(texts)
    assert [reader.feed([token]) for token in tokens] == ["a", "", "é"]


def test_a_copy_goes_on_by_itself(texts):
    reader = IncrementalDetokenizer(texts)
    reader.feed(texts.tokenizer.encode("a"))
    other = reader.copy()
    assert other.feed(texts.tokenizer.encode("b")) == "b"
    assert reader.feed(texts.tokenizer.encode("c")) == "c"


def test_single_tokens_have_their_bytes(texts, fallback):
    tokens = texts.tokenizer.encode("é b")
    assert [texts.singles[token] for token in tokens] == ["bytes:\\xc3", "bytes:\\xa9", " ", "b"]
    assert [texts.lengths[token] for token in tokens] == [0, 0, 1, 1]
    assert b"".join(map(texts.bytes_of, tokens)).decode() == "é b"
    assert texts.singles[texts.tokenizer.eos_token_id] == "<|end|>"
    names = [fallback.backend.token_to_id(name) for name in ("▁a", "e", "<0xC3>")]
    assert [fallback.singles[token] for token in names] == [" a", "e", "bytes:\\xc3"]


def test_every_byte_has_its_symbol(texts):
    assert sorted(texts.alphabet.values()) == list(range(256))
    ids = texts.tokenizer.convert_tokens_to_ids(list(texts.alphabet))
    assert [texts.part_of_character(token) for token in ids] == [
        bytes([byte]) for byte in texts.alphabet.values()
    ]


def parts_of(text):
    """Every division of a text into parts."""
    for count in range(len(text)):
        for cuts in combinations(range(1, len(text)), count):
            borders = (0, *cuts, len(text))
            yield [text[a:b] for a, b in pairwise(borders)]


def read(stops, parts, keep=False):
    reader, found = StopStrings(stops, keep=keep), ""
    for part in parts:
        certain, stop = reader.feed(part)
        found += certain
        if stop is not None:
            return found, stop
    return found + reader.flush(), None


@pytest.mark.parametrize(
    ("text", "stops", "expected"),
    [
        ("abcdef", ["cd"], ("ab", "cd")),
        ("aaab", ["aab"], ("a", "aab")),
        ("aababc", ["abc"], ("aab", "abc")),
        ("ababac", ["abac", "bab"], ("a", "bab")),  # the first in the text, not in the list
        ("abcab", ["cd"], ("abcab", None)),
        ("ab", ["ab"], ("", "ab")),
        ("abab", ["abb"], ("abab", None)),
    ],
)
def test_a_text_ends_before_a_stop_string_however_it_is_divided(text, stops, expected):
    for parts in parts_of(text):
        assert read(stops, parts) == expected, parts


def test_a_stop_string_may_be_kept():
    assert read(["cd"], ["abc", "def"], keep=True) == ("abcd", "cd")


def test_only_the_possible_beginning_of_a_stop_string_is_held_back():
    stops = StopStrings(["<end>"])
    assert stops.feed("abc<en") == ("abc", None)
    assert stops.feed("t") == ("<ent", None)
    assert stops.flush() == ""


def test_occurs_changes_nothing():
    stops = StopStrings(["ab"])
    stops.feed("xa")
    assert stops.occurs("b")
    assert not stops.occurs("c")
    assert stops.feed("b") == ("", "ab")


def test_an_overlap_is_never_the_whole_stop_string():
    assert overlap("ab", "ab") == 0
    assert overlap("aab", "abc") == 2
    assert overlap("", "ab") == 0
