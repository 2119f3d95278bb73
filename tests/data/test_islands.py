"""Tests the questions about islands, and the documents with their answers."""

import re

import pytest

from rl4p.base.errors import InputError
from rl4p.data.islands import Islands, documents, islands


def test_the_documents_answer_every_question():
    texts = dict(documents())
    assert len(texts) == 2 * len(islands()) == 480
    data = Islands()
    rows = [*data.train(), *data.held_out()]
    assert len({row.question for row in rows}) == len(rows) == 640 + 256
    hops = set()
    for row in rows:
        name = row.question.rstrip("?").removesuffix(" founded").split()[-1]
        text = texts[name]
        if "town" in row.question:
            text = texts[re.search(r"harbour is (\w+)\.", text)[1]]
            pattern = r"founded in (\d+)" if "founded" in row.question else r"(\d+) people"
        else:
            pattern = r"(\d+) square" if "square" in row.question else r"(\d+) metres"
        assert re.search(pattern, text)[1] == row.answer
        hops.add(pattern)
    assert len(hops) == 4


def test_the_islands_are_always_the_same():
    assert islands()[0] == ("Falia", 217, 31, "Lorra", 1483, 4842)


def test_more_questions_than_there_are_are_refused():
    with pytest.raises(InputError, match=r"data.train_size \+ data.held_out_size is 961"):
        Islands(train_size=705).train()
