import pytest

from rl4p.base.errors import InputError
from rl4p.data.crossword import Crossword
from rl4p.data.crossword_answer import canonical

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
