"""Tests which runs the arguments name, where the files go, and what is refused in one sentence."""

import datetime as clock
from pathlib import Path

import pytest

from rl4p.errors import InputError
from rl4p.runs.comparison import sources
from rl4p.runs.comparison.sources import folders, parsed, read
from tests.runs.comparison.conftest import write_run


def test_each_source_has_its_arguments():
    assert parsed(["sweep=a", "metric=m", "out=o"]) == {"sweep": "a", "metric": "m", "out": "o"}
    assert parsed(["runs=[a,b]"]) == {"runs": "[a,b]"}
    given = ["experiment=e", "tracker.uri=sqlite:///a=b.db"]
    assert parsed(given)["tracker.uri"] == "sqlite:///a=b.db"


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["metric=m"],
        ["sweep=a", "runs=[b]"],
        ["sweep=a", "sweeps=b"],
        ["experiment=e"],
        ["sweep="],
        ["a"],
    ],
)
def test_other_arguments_are_refused_in_one_sentence(given):
    with pytest.raises(InputError) as error:
        parsed(given)
    assert str(error.value).startswith("Give ")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a/b", ["a/b"]),
        ("[a,b]", ["a", "b"]),
        ("[a b, c]", ["a b", "c"]),
        ("['a,b', \"é\"]", ["a,b", "é"]),
        ("[2026-11-23,1]", ["2026-11-23", "1"]),
    ],
)
def test_folders_are_a_list(value, expected):
    assert folders(value) == [Path(name) for name in expected]


def test_a_folder_that_exists_is_taken_as_it_is_written(tmp_path):
    (tmp_path / "a,[b").mkdir()
    assert folders(f"{tmp_path}/a,[b") == [tmp_path / "a,[b"]


@pytest.mark.parametrize("value", ["[a", "[]", "{a: b}", "[[a]]"])
def test_what_is_no_list_of_folders_is_refused(value):
    with pytest.raises(InputError, match="is not a list of folders"):
        folders(value)


def test_the_files_of_a_sweep_are_in_its_folder(sweep):
    runs, left_out, out = read({"sweep": str(sweep)})
    assert len(runs) == 6
    assert not left_out
    assert out == sweep / "compare"


def test_the_files_of_all_runs_of_a_sweep_are_in_its_folder_too(sweep):
    assert read({"runs": f"[{sweep}/grpo-0,{sweep}/rloo-0]"})[2] == sweep / "compare"


def test_the_files_of_other_runs_are_in_a_new_folder(tmp_path, sweep, monkeypatch):
    class Noon(clock.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 11, 23, 12, 0, 5)

    monkeypatch.setattr(sources, "datetime", Noon)
    alone = write_run(tmp_path / "alone")
    expected = Path("outputs/comparisons/2026-11-23/12-00-05/compare")
    assert read({"runs": f"[{sweep},{alone}]"})[2] == expected
    assert read({"runs": str(alone)})[2] == expected


def test_out_is_the_folder_that_the_files_are_put_into(sweep, tmp_path):
    assert read({"sweep": str(sweep), "out": str(tmp_path)})[2] == tmp_path / "compare"
