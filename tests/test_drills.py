"""Tests that the drills are all there, without carrying them out."""

import shlex
from importlib import import_module
from subprocess import CompletedProcess

from experiments.drills.__main__ import HERE, command, outcome, page, renewed
from experiments.drills.rows import ROWS as ROWS_BY_PART
from tests.mutants.mutant import read
from tests.support.documents import ROOT

ROWS = [x for rows in ROWS_BY_PART.values() for x in rows]
SHARED = {
    "__init__",
    "__main__",
    "checkpoints",
    "fuzz",
    "interruptions",
    "outcome",
    "rows",
    "small_run",
}


def test_every_row_says_what_shows_it():
    for row in ROWS:
        assert row.keys() - {"what", "mutant"} in ({"tests"}, {"parity"}, {"drill"}), row


def test_every_row_has_a_mutant():
    names = {mutant.name for mutant in read()}
    assert [row["what"] for row in ROWS if row.get("mutant") not in names] == []


def test_every_drill_is_in_a_row():
    modules = {path.stem for path in HERE.glob("*.py")} - SHARED
    assert modules == {row["drill"] for row in ROWS if "drill" in row}
    for name in modules:
        assert callable(import_module(f"experiments.drills.{name}").main)


def test_the_tests_of_every_row_exist():
    for row in ROWS:
        words = shlex.split(row.get("tests") or row.get("parity") or "")
        paths = [word for word in words if word.startswith("tests/")]
        assert bool(paths) == ("drill" not in row), row
        assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_line_of_a_row_is_renewed():
    names = {part: [f"| {row['what']}" for row in rows] for part, rows in ROWS_BY_PART.items()}
    first, second, third = names["faults"][:3]
    empty = {part: [] for part in names}
    text = page({**empty, "faults": [f"{first} | no | 1 |", f"{third} | yes | 2 |"]})
    assert f"|---|---|---|---|---|\n{first} | no | 1 |\n{third} | yes | 2 |\n" in text
    found = renewed(text, [f"{first} | yes | 3 |", f"{second} | yes | 4 |"])
    rows = [f"{first} | yes | 3 |", f"{second} | yes | 4 |", f"{third} | yes | 2 |"]
    assert found == page({**empty, "faults": rows})


def test_a_drill_that_prints_no_figures_shows_its_exit_code():
    done = CompletedProcess([], 1, stdout="Traceback")
    row = {"what": "x", "drill": "kills"}
    assert command(row) == ["-m", "experiments.drills.kills"]
    assert outcome(row, done) == "exit code 1"
    done.stdout = '{"drill": "kills", "asked": "5 kills", "got": {"kills": 5}, "held": true}'
    assert outcome(row, done) == "asked: 5 kills; got: kills: 5"
