"""Tests the page for those who come from other libraries: complaints, commands, words.

The slow test of documents runs all of its commands. Those that train nothing run here too.
"""

import json
import re

import pytest

from docs.generator.words import words
from rl4p import regrade, translate
from rl4p.configuration.suggestions import KEYS
from tests.support.documents import DOCS, commands, write_files

PAGE = DOCS / "coming_from.md"
SECTION = re.compile(r"^### (.+?)\n(.+?)(?=^##)", re.MULTILINE | re.DOTALL)
COMPLAINTS = dict(SECTION.findall(PAGE.read_text()))
THREAD = re.compile(r"\[([\w.-]+/[\w.-]+)#(\d+)\]\(https://github\.com/\1/issues/\2\)")
MAINS = {"rl4p.regrade": regrade.main, "rl4p.translate": translate.main}


def test_there_are_fifteen_complaints():
    assert len(COMPLAINTS) == 15


@pytest.mark.parametrize("text", COMPLAINTS.values(), ids=COMPLAINTS)
def test_a_complaint_has_a_public_thread_and_a_command(text):
    assert THREAD.search(text)
    assert re.search(r"^```(sh|python)$", text, re.MULTILINE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory with the files of the page, after the commands that train nothing."""
    write_files(PAGE, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    here = [line for line in commands(PAGE) if line[2] in MAINS]
    assert len(here) == 5
    for line in here:
        assert MAINS[line[2]](line[3:]) == 0, line
    return tmp_path


def test_the_commands_that_train_nothing_show_what_the_page_says(capsys, folder):
    def validity(name):
        return [json.loads(line)["valid"] for line in (folder / name).read_text().splitlines()]

    assert validity("late.jsonl") == [False] * 3
    assert validity("failed.jsonl") == [True, True, False]
    graded = map(json.loads, (folder / "graded.jsonl").read_text().splitlines())
    assert [row["terms"]["correct"] for row in graded] == [1.0, 1.0, 0.0]
    assert "sequences a step  128 (16 x 8)" in capsys.readouterr().out


def test_the_table_has_every_word():
    rows = words().splitlines()[2:]
    assert len(rows) == len(KEYS)
    assert "| `num_generations`, " in "\n".join(rows)
    for row, known in zip(rows, KEYS, strict=True):
        assert re.findall(r"`([^`]+)`", row.split(" | ")[0]) == known.names.split()
