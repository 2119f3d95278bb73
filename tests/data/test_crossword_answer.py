import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4p.data.crossword_answer import canonical, contains


@pytest.mark.parametrize(
    ("text", "letters"),
    [
        ("R&D É-1", "RANDDE"),
        ("r & d", "RANDD"),
        ("New York", "NEWYORK"),
        ("naïve café", "NAIVECAFE"),
        ("e\u0301", "E"),  # an accent as a character of its own
        ("ﬁn", "FIN"),  # a ligature
        ("\uff21", "A"),  # full width
        ("straße", "STRASSE"),
        ("42", ""),
        ("", ""),
    ],
)
def test_the_canonical_form(text, letters):
    assert canonical(text) == letters


@given(st.lists(st.integers(1, 0xD7FF).map(chr), max_size=20).map("".join))
def test_the_canonical_form_has_letters_only_and_is_its_own(text):
    letters = canonical(text)
    assert all("A" <= letter <= "Z" for letter in letters)
    assert canonical(letters) == letters == canonical(unicodedata.normalize("NFC", text))


@pytest.mark.parametrize(
    ("text", "contained"),
    [
        ("It is New York.", True),
        ("NEWYORK", True),
        ("new-york", True),
        ("New Yorkers", False),
        ("Renew York", False),
        ("new, old York", False),
        ("NEW Y ORK", True),  # its letters, in whole words
        ("Newyo, newyorker, newyork", True),  # the last of several places
        ("", False),
    ],
)
def test_whole_words_are_found(text, contained):
    assert contains(text, "New York") is contained


def test_an_answer_without_letters_is_nowhere():
    assert not contains("any text", "42")


def test_an_accent_does_not_divide_a_word():
    assert contains("a naïve answer", "NAIVE")
    assert not contains("a naïve answer", "VE")


def test_a_long_text_is_searched_in_linear_time():
    """Words that begin and end as the answer does, but nowhere in whole words."""
    assert not contains("AAAA" * 250_000, "AAAA")
    assert not contains("AB " * 300_000, "BAB")
