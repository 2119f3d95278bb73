"""Tests that the drills are all there, without carrying them out."""

import shlex
from importlib import import_module

import yaml

from experiments.drills.__main__ import HERE, command, outcome
from tests.test_house import ROOT

ROWS = [x for rows in yaml.safe_load((HERE / "rows.yaml").read_text()).values() for x in rows]
SHARED = {"__init__", "__main__", "checkpoints", "fuzz", "outcome", "small_run"}


def test_every_row_says_what_shows_it():
    for row in ROWS:
        assert row.keys() - {"what"} in ({"tests"}, {"parity"}, {"drill"}), row


def test_every_drill_is_in_a_row():
    modules = {path.stem for path in HERE.glob("*.py")} - SHARED
    assert modules == {row["drill"] for row in ROWS if "drill" in row}
    for name in modules:
        assert callable(import_module(f"experiments.drills.{name}").main)


def test_the_tests_of_every_row_exist():
    paths = [
        word
        for row in ROWS
        for word in shlex.split(row.get("tests") or row.get("parity") or "")
        if word.startswith("tests/")
    ]
    assert len(paths) > len(ROWS)
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_a_drill_that_prints_no_figures_shows_its_exit_code():
    class Done:
        stdout, returncode = "Traceback", 1

    row = {"what": "x", "drill": "kills"}
    assert command(row) == ["-m", "experiments.drills.kills"]
    assert outcome(row, Done) == "exit code 1"
    Done.stdout = '{"drill": "kills", "asked": "5 kills", "got": {"kills": 5}, "held": true}'
    assert outcome(row, Done) == "asked: 5 kills; got: kills: 5"
