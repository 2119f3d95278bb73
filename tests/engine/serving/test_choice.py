import numpy as np
import pytest

from rl4p.base.types import Finish, Sampling
from rl4p.engine.detokenizer import Detokenizer
from rl4p.engine.sequence import Chunk, TokenSequence
from rl4p.engine.serving.choice import Choice, CompletionOptions

ONLY = TokenSequence(context=(1,), key=np.zeros(2, np.uint32), max_tokens=9, end_ids=())


@pytest.fixture(scope="module")
def texts(policy):
    return Detokenizer(policy.tokenizer)


@pytest.fixture
def make(texts, policy):
    def make(stream=False, **options):
        given = {"sampling": Sampling(), "max_tokens": 9, "end_ids": policy.end_ids}
        return Choice(texts, CompletionOptions(**given | options), stream=stream)

    return make


@pytest.fixture
def part(texts):
    def part(text, finish=None, version="1", end=()):
        tokens = [*texts.tokenizer.encode(text), *end]
        return Chunk(ONLY, tokens, [-1.0] * len(tokens), [], finish, version)

    return part


def test_an_end_token_is_no_text_unless_it_is_kept(make, part, policy):
    for keep, text in ((False, "ab"), (True, "ab<|end|>")):
        for stream in (False, True):
            completion = make(stream, keep_stop=keep, skip_special=False)
            completion.add(part("ab", Finish.STOP, end=policy.end_ids))
            assert completion.text() == text
            assert completion.finish == "stop"
            assert completion.matched == policy.end_ids[0]


def test_the_versions_of_tokens_are_spans(make, part):
    completion = make()
    for text, version in (("ab", "1"), ("c", "1"), ("d", "2")):
        completion.add(part(text, version=version))
    completion.add(Chunk(ONLY, [], [], [], Finish.ABORT))
    assert completion.versions() == [
        {"version": "1", "start": 0, "end": 3},
        {"version": "2", "start": 3, "end": 4},
    ]
    assert completion.versions(2)[0] == {"version": "1", "start": 2, "end": 3}
    assert completion.versions(3) == [{"version": "2", "start": 3, "end": 4}]
    assert (completion.finish, completion.matched) == ("abort", None)


def test_deltas_have_what_is_new(make, part):
    completion = make(stream=True)
    completion.add(part("ab"))
    assert completion.delta() == ("ab", 0)
    completion.add(part("c"))
    completion.add(part("d"))
    assert completion.delta() == ("cd", 2)
    assert completion.delta() == ("", 4)


def test_nothing_is_added_after_a_stop_string(make, part):
    completion = make(stops=("bc",))
    completion.add(part("ab"))
    completion.add(part("cdef"))
    completion.add(part("gh", Finish.LENGTH))
    assert (completion.text(), len(completion.tokens)) == ("a", 3)
    assert (completion.finish, completion.matched) == ("stop", "bc")
    assert len(completion.logprobs) == 3


def test_a_character_that_is_never_completed_is_the_end_of_the_text(make, texts):
    half = texts.tokenizer.encode("é")[:1]
    for stream in (True, False):
        completion = make(stream)
        completion.add(Chunk(ONLY, half, [-1.0], [], Finish.LENGTH, "1"))
        assert completion.text() == "\ufffd"


def test_a_stop_string_is_found_inside_of_characters_of_several_tokens(make, texts):
    tokens = texts.tokenizer.encode("aéb")
    for size in (1, 2, 4):
        completion = make(stops=("é",))
        for at in range(0, 4, size):
            completion.add(Chunk(ONLY, tokens[at : at + size], [0.0] * size, [], None, "1"))
        assert (completion.text(), len(completion.tokens)) == ("a", 3)
