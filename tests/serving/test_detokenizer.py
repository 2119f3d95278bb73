import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from rl4p.model.tokenizer import byte_tokenizer
from rl4p.serving.detokenizer import Detokenizer, IncrementalDetokenizer


@pytest.fixture(scope="module")
def texts():
    return Detokenizer(byte_tokenizer())


@pytest.fixture(scope="module")
def with_spaces():
    """A tokenizer like SentencePiece's, which drops a space at the beginning of a text."""
    vocabulary = {"<unk>": 0, "▁a": 1, "▁be": 2, "e": 3, "<0xC3>": 4, "<0xA9>": 5, "a": 6}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])  # fmt: skip
    return Detokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>"))


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


@pytest.mark.parametrize("size", [1, 2, 5])
def test_spaces_at_the_beginning_of_parts_stay(with_spaces, size):
    tokens = [1, 2, 4, 5, 1] * 20
    parts = streamed(with_spaces, tokens, size)
    assert "".join(parts) == " ".join(["a beé a"] * 20).replace(" a a", " a a")
    assert "".join(parts) == with_spaces.decode(tokens)


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


def test_single_tokens_have_their_bytes(texts, with_spaces):
    tokens = texts.tokenizer.encode("é b")
    assert [texts.singles[token] for token in tokens] == ["bytes:\\xc3", "bytes:\\xa9", " ", "b"]
    assert [texts.lengths[token] for token in tokens] == [0, 0, 1, 1]
    assert b"".join(map(texts.bytes_of, tokens)).decode() == "é b"
    assert texts.singles[texts.tokenizer.eos_token_id] == "<|end|>"
    assert [with_spaces.singles[token] for token in (1, 3, 4)] == [" a", "e", "bytes:\\xc3"]


def test_every_byte_has_its_symbol(texts):
    assert sorted(texts.alphabet.values()) == list(range(256))
    ids = texts.tokenizer.convert_tokens_to_ids(list(texts.alphabet))
    assert [texts.part_of_character(token) for token in ids] == [
        bytes([byte]) for byte in texts.alphabet.values()
    ]
