"""Tests crossword clues, their facts, and the canonical form of answers."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl4p.base.errors import InputError
from rl4p.data.crossword import NUMBERS, Crossword, canonical, clues, contains

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
    assert len(set(NUMBERS)) == len(NUMBERS) == 100
    assert NUMBERS[19:22] == ["nineteen", "twenty", "twenty-one"]


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_long_text_is_searched_in_linear_time():
    """Words that begin and end as the answer does, but nowhere in whole words."""
    assert not contains("AAAA" * 250_000, "AAAA")
    assert not contains("AB " * 300_000, "BAB")


ROWS = [
    {"clue": "Capital of Norway", "answer": "Oslo"},
    {"clue": "Big Apple (3,4)", "answer": "New York"},
    {"clue": "Research, for short ", "answer": "R&D"},
    {"clue": "Opposite of yes (2 letters)", "answer": "no"},
]


def test_the_facts_are_split_and_the_same_in_every_run():
    data = Crossword()
    train, held_out = data.train(), data.held_out()
    assert (len(train), len(held_out)) == (310, 64)
    assert len({row.id for row in [*train, *held_out]}) == 374
    assert Crossword().train() == train
    assert Crossword(seed=1).train() != train
    assert len(Crossword(held_out_size=10).held_out()) == 10
    row = next(row for row in [*train, *held_out] if row.question.startswith("Capital of Norway"))
    assert (row.question, row.answer) == ("Capital of Norway (4 letters)", "OSLO")
    assert (row.task, row.solution) == ("crossword", "<answer>OSLO</answer>")


def test_facts_of_all_kinds_are_held_out():
    held_out = [row.question for row in Crossword().held_out()]
    for word in ("Capital", "Element", "words", "times"):
        assert sum(word in question for question in held_out) > 3


def test_clues_of_a_file_are_asked_with_their_letters(write):
    data = Crossword(path=write(ROWS), held_out_path=write(ROWS[:1], "held_out.jsonl"))
    assert [row.question for row in data.train()] == [
        "Capital of Norway (4 letters)",
        "Big Apple (3,4)",
        "Research, for short (5 letters)",
        "Opposite of yes (2 letters)",
    ]
    assert [row.answer for row in data.train()] == ["Oslo", "New York", "R&D", "no"]
    assert [row.answer for row in data.held_out()] == ["Oslo"]
    assert {row.task for row in data.train()} == {"crossword"}
    assert data.train()[1].solution == "<answer>New York</answer>"
    plain = Crossword(path=write(ROWS), letters=False)
    assert {row.question for row in plain.file.all_questions} == {row["clue"] for row in ROWS}
    assert not [row for row in plain.held_out() if "Norway (" in row.question]


def test_rows_of_a_file_are_held_out(write):
    rows = [{"clue": f"Clue {i}", "answer": "A" * (i + 1)} for i in range(10)]
    data = Crossword(path=write(rows), held_out_size=3)
    train, held_out = data.train(), data.held_out()
    assert (len(train), len(held_out)) == (7, 3)
    assert not {row.id for row in train} & {row.id for row in held_out}
    assert all(str(len(canonical(row.answer))) in row.question for row in train)


def test_other_names_of_the_fields(write):
    path = write([{"hint": "Capital of Norway", "word": "Oslo"}, {"hint": "a", "word": "B"}])
    data = Crossword(path=path, question_key="hint", answer_key="word", held_out_size=1)
    assert {row.answer for row in [*data.train(), *data.held_out()]} == {"Oslo", "B"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out_path": "x"}, "held_out_path needs a path"),
        ({"path": "x", "seed": 1}, "leave it out with a path"),
        ({"held_out_size": 374}, "holds out all 374 clues"),
        ({"path": "x", "held_out_path": "y", "held_out_size": 3}, "cannot be combined"),
    ],
)
def test_options_that_cannot_act_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Crossword(**options)


def test_bad_rows_are_refused_with_their_place(write):
    with pytest.raises(InputError, match=r'rows\.jsonl, line 2: no text under "answer"'):
        Crossword(path=write([ROWS[0], {"clue": "x"}])).train()
    path = write([{"clue": "x", "answer": "42"}])
    with pytest.raises(InputError, match=r"answer '42' to the clue 'x' has no letters A-Z"):
        Crossword(path=path, held_out_path=path).train()
