import re

import pytest

from rl4p.data.crossword_answer import canonical
from rl4p.data.crossword_facts import clues, number_word

CLUES = dict(clues())


@pytest.mark.parametrize(
    ("clue", "answer"),
    [
        ("Capital of Albania", "Tirana"),
        ("Capital of Argentina", "Buenos Aires"),
        ("Capital of Zimbabwe", "Harare"),
        ("Element with the symbol Fe", "Iron"),
        ("Element number 26", "Iron"),
        ("Element number 1", "Hydrogen"),
        ("Element number 54", "Xenon"),
        ("First month", "January"),
        ("Seventh day of the week", "Sunday"),
        ("Eighth planet from the Sun", "Neptune"),
        ("Twenty-fourth letter of the Greek alphabet", "Omega"),
        ("0, in words", "zero"),
        ("13, in words", "thirteen"),
        ("40, in words", "forty"),
        ("99, in words", "ninety-nine"),
        ("Seven times eight", "fifty-six"),
    ],
)
def test_a_fact(clue, answer):
    assert CLUES[clue] == answer


def test_no_clue_has_two_answers_and_none_is_empty():
    assert len(CLUES) == len(list(clues())) == 374
    assert all(canonical(answer) for answer in CLUES.values())
    assert not [clue for clue in CLUES if re.search(r"\s\s|\n", clue)]


def test_numbers_have_words_of_their_own():
    words = [number_word(number) for number in range(100)]
    assert len(set(words)) == 100
    assert words[19:22] == ["nineteen", "twenty", "twenty-one"]
