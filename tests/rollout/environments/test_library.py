"""Tests a document store and its tools."""

import asyncio
import json

import pytest

from rl4p.base.errors import InputError
from rl4p.data.synthetic import islands
from rl4p.rollout.environments.library import Library
from rl4p.rollout.environments.tool_object import ToolObject


@pytest.fixture
def pets(tmp_path):
    rows = [("Cats", "Cats sleep a lot. Cats purr."), ("Dogs", "Dogs chase cats and balls.")]
    path = tmp_path / "pets.jsonl"
    path.write_text("".join(json.dumps({"title": t, "text": x}) + "\n" for t, x in rows))
    return Library(str(path), results=2)


@pytest.mark.parametrize(
    ("query", "result"),
    [
        ("cats", "1 Cats\n2 Dogs"),
        ("who chases balls?", "2 Dogs"),
        ('BALLS" OR (NEAR', "2 Dogs"),
        ("horses", "Nothing fits."),
        (" -- ", "Nothing fits."),
    ],
)
def test_a_search(pets, query, result):
    assert pets.search(query) == result


def test_documents_are_read_by_number(pets):
    assert pets.read(2) == "Dogs chase cats and balls."
    assert pets.read(3) == "There is no document 3."


def test_the_town_of_an_island_is_found_in_two_steps():
    library, island = Library(), islands()[7]

    def read(name):
        number, title = library.search(f"How is {name}?").split("\n")[0].split()
        assert title == name
        return library.read(int(number))

    assert f"harbour is {island.harbour}." in read(island.name)
    assert f"founded in {island.founded}" in read(island.harbour)


def test_many_threads_search_at_the_same_time(make_prompt):
    call = '<tool_call>{"name": "search", "arguments": {"query": "lighthouse"}}</tool_call>'
    options = ToolObject(factory=Library)

    async def everyone():
        opened = [options.open(make_prompt(), 0, "e1") for _ in range(32)]
        return await asyncio.gather(*(each.step({"content": call}) for each in opened))

    texts = {result.messages[0]["content"] for result in asyncio.run(everyone())}
    assert len(texts) == 1
    assert len(texts.pop().split("\n")) == 3


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read: No such file"),
        ("", "has no documents"),
        ('{"title": "a"}\n', "line 1: a document has a title and a text"),
        ('{"title": "a", "text": "b"}\n[]\n', "line 2: a JSON object is expected"),
    ],
)
def test_files_that_are_no_documents_are_refused(tmp_path, content, sentence):
    path = tmp_path / "documents.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=sentence):
        Library(str(path))
