from itertools import combinations, pairwise

import pytest

from rl4p.engine.stop_strings import StopStrings, overlap


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
