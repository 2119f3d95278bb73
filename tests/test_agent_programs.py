"""Tests that the programs of agent frameworks are all there, without installing any."""

import pytest

from experiments.agents.__main__ import HERE, row
from experiments.agents.rows import FRAMEWORKS
from experiments.agents.scripted import question, script

RIGHT = {"turns": 2, "segments": 1, "exact": True, "failure": None}
WRONG = RIGHT | {"turns": 1, "exact": False, "failure": "stop is refused", "reward": None}


def test_every_program_is_in_a_row():
    programs = {path.name for path in (HERE / "frameworks").iterdir() if path.is_file()}
    assert programs == {framework.program for framework in FRAMEWORKS.values()}


@pytest.mark.parametrize("framework", FRAMEWORKS.values(), ids=list(FRAMEWORKS))
def test_a_program_has_packages_of_one_version(framework):
    mark = "==" if framework.program.endswith(".py") else "@"
    for package in framework.packages:
        name, found, version = package.rpartition(mark)
        assert name
        assert found
        assert version[0].isdigit()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_answer_is_that_of_the_question(name):
    found, texts, answer = script(f"<|user|>{question(name, 5)}<|end|>")
    assert found == name
    assert str(answer) in texts[-1]
    _, others, _ = script(question(name, 5), less=1)
    assert str(answer - 1) in others[-1]
    assert texts[0] == others[0]


@pytest.mark.parametrize(
    ("episodes", "cells"),
    [
        ([RIGHT | {"reward": 1.0}, RIGHT | {"reward": 0.0}], ["2", "1", "exact", "0 of 2", ""]),
        ([RIGHT | {"reward": 1.0}] * 2, ["2", "1", "no", "0 of 2", ""]),
        ([RIGHT | {"reward": 1.0}, WRONG], ["1/2", "1", "no", "1 of 2", "stop is refused"]),
    ],
)
def test_a_line_of_the_table(episodes, cells):
    version = FRAMEWORKS["litellm"].packages[0].rpartition("=")[2]
    assert row("litellm", FRAMEWORKS["litellm"], episodes) == ["litellm", version, *cells]
