"""Tests that lines are appended whole, and that readers take complete lines only."""

import json
import math
import resource

import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.runs import lines


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.jsonl"


def test_numbers_that_are_not_finite_are_texts_at_any_depth(path):
    lines.append(path, [{"b": [math.nan, {"c": (-math.inf, 1.5)}], "a": math.inf}])
    assert path.read_text() == '{"a": "Infinity", "b": ["NaN", {"c": ["-Infinity", 1.5]}]}\n'


def test_lines_are_read_from_an_offset(path):
    lines.append(path, [{"a": 1}, {"a": 2}])
    lines.append(path, [{"a": 3}])
    rows = list(lines.read(path))
    assert [json.loads(line)["a"] for line, _ in rows] == [1, 2, 3]
    assert [line for line, _ in lines.read(path, rows[0][1])] == [line for line, _ in rows[1:]]
    assert rows[-1][1] == path.stat().st_size


@pytest.mark.parametrize(("unfinished", "count"), [(False, 1), (True, 2)])
def test_a_last_line_without_a_line_feed_may_be_unfinished(path, unfinished, count):
    path.write_bytes(b"1\n2")
    assert len(list(lines.read(path, unfinished=unfinished))) == count


def test_a_line_may_have_the_greatest_length_and_no_more(path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST", 8)
    path.write_bytes(b"1234567\n\n")
    assert len(list(lines.read(path))) == 2
    path.write_bytes(b"\n12345678\n")
    with pytest.raises(InputError, match=r"a\.jsonl has a line of more than 0 MiB"):
        list(lines.read(path))


def test_lines_that_the_disk_takes_in_part_are_taken_back(path):
    lines.append(path, [{"a": 0.0}])
    size = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
    try:
        with pytest.raises(RunError, match=r"^Cannot write .*a\.jsonl: No space left on"):
            lines.append(path, [{"a": 1.0}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.stat().st_size == size
    lines.append(path, [{"a": 2.0}])
    with pytest.raises(RunError, match=r"^Cannot write .*: Is a directory\.$"):
        lines.append(path.parent, [{}])
    assert [json.loads(line)["a"] for line, _ in lines.read(path)] == [0.0, 2.0]
