"""Tests that lines are appended whole, and that readers take complete lines only."""

import errno
import json
import math
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from rl4p.base.errors import InputError, RunError
from rl4p.runs import record as records
from rl4p.runs.record import ROOM, Record, append_lines, read_lines, replace_file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "a.jsonl"


def test_numbers_that_are_not_finite_are_texts_at_any_depth(path):
    append_lines(path, [{"b": [math.nan, {"c": (-math.inf, 1.5)}], "a": math.inf}])
    assert path.read_text() == '{"a": "Infinity", "b": ["NaN", {"c": ["-Infinity", 1.5]}]}\n'


def test_lines_are_read_from_an_offset(path):
    append_lines(path, [{"a": 1}, {"a": 2}])
    append_lines(path, [{"a": 3}])
    rows = list(read_lines(path))
    assert [json.loads(line)["a"] for line, _ in rows] == [1, 2, 3]
    assert [line for line, _ in read_lines(path, rows[0][1])] == [line for line, _ in rows[1:]]
    assert rows[-1][1] == path.stat().st_size


@pytest.mark.parametrize(("unfinished", "count"), [(False, 1), (True, 2)])
def test_a_last_line_without_a_line_feed_may_be_unfinished(path, unfinished, count):
    path.write_bytes(b"1\n2")
    assert len(list(read_lines(path, unfinished=unfinished))) == count


def test_a_line_may_have_the_greatest_length_and_no_more(path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST_LINE", 8)
    path.write_bytes(b"1234567\n\n")
    assert len(list(read_lines(path))) == 2
    path.write_bytes(b"\n12345678\n")
    with pytest.raises(InputError, match=r"a\.jsonl has a line of more than 0 MiB"):
        list(read_lines(path))


def test_lines_that_the_disk_takes_in_part_are_taken_back(path):
    append_lines(path, [{"a": 0.0}])
    size = path.stat().st_size
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
    try:
        with pytest.raises(RunError, match=r"^Cannot write .*a\.jsonl: No space left on"):
            append_lines(path, [{"a": 1.0}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.stat().st_size == size
    append_lines(path, [{"a": 2.0}])
    with pytest.raises(RunError, match=r"^Cannot write .*: Is a directory\.$"):
        append_lines(path.parent, [{}])
    assert [json.loads(line)["a"] for line, _ in read_lines(path)] == [0.0, 2.0]


def test_a_run_without_a_summary_says_how_far_it_is(tmp_path):
    record = Record(tmp_path)
    assert "not started" in record._repr_html_()
    record.log(0, {"reward/mean": 0.5})
    record.log(1, {"reward/mean": 0.5})
    assert "step 1, not finished" in record._repr_html_()
    assert "<table" not in record._repr_html_()


def test_texts_of_samples_are_escaped_and_cut(tmp_path):
    record = Record(tmp_path / "<b>")
    record.folder.mkdir()
    bad = "<script>alert(1)</script>"
    record.log_samples(1, [{"prompt": bad, "response": "x" * 1000, "reward": 1.0}])
    html = record._repr_html_()
    assert "<script" not in html
    assert "&lt;script&gt;" in html
    assert "&lt;b&gt;" in html
    assert "x" * 400 + "..." in html
    assert "x" * 401 not in html


def test_results_are_shown_with_their_first_last_and_best_values(tmp_path):
    record = Record(tmp_path)
    name = "eval/sums/pass_at_1"
    record.write_summary(
        {
            "status": "finished",
            "step": 3,
            "seconds": {"total": 4.2},
            "evaluation": {"first": {name: 0.1}, "last": {name: 0.25}, "best": {name: 0.5}},
        }
    )
    html = record._repr_html_()
    assert "finished at step 3 after 4 s" in html
    for text in ("sums/pass_at_1", "0.100", "0.250", "0.500"):
        assert f">{text}</td>" in html


@pytest.fixture
def record(tmp_path):
    return Record(tmp_path)


def refuse(word):
    raise AssertionError(f"{word} is not JSON")


def test_a_line_is_flat_with_sorted_keys_and_exact_floats(record):
    record.log(0, {"eval/arithmetic/pass_at_1": 0.25})
    record.log(np.int32(1), {"update/loss": 0.1 + 0.2, "reward/mean": np.float32(0.1), "tokens": 7})
    assert record.metrics_file.read_text() == (
        '{"eval/arithmetic/pass_at_1": 0.25, "step": 0}\n'
        '{"reward/mean": 0.10000000149011612, "step": 1, "tokens": 7.0, "update/loss": '
        "0.30000000000000004}\n"
    )
    assert record.metrics()[1]["update/loss"] == 0.1 + 0.2
    assert record.metrics()[1]["step"] == 1
    record.log(3, {"step": 9.0, "a": 1.0})  # the step wins over a metric of the same name
    assert record.metrics()[2] == {"a": 1.0, "step": 3}


def test_numbers_that_are_not_finite_are_valid_json_and_read_back(record):
    record.log(1, {"a": math.nan, "b": math.inf, "c": -math.inf})
    json.loads(record.metrics_file.read_text(), parse_constant=refuse)
    (row,) = record.metrics()
    assert math.isnan(row["a"])
    assert (row["b"], row["c"]) == (math.inf, -math.inf)


def test_a_sample_keeps_its_texts_as_they_are(record):
    sample = {"prompt": "1/0?\n\u2028", "response": "NaN \ud800", "reward": math.nan}
    record.log_samples(2, [sample | {"terms": {"correct": [math.inf, 1.0]}}])
    json.loads(record.samples_file.read_text(), parse_constant=refuse)
    (row,) = record.samples()
    assert row == {"step": 2, **sample, "reward": "NaN", "terms": {"correct": ["Infinity", 1.0]}}


def test_reading_goes_on_where_it_ended_and_waits_for_the_end_of_a_torn_line(record):
    record.log(0, {"a": 0.0})
    record.log(1, {"a": 1.0})
    rows, offset = record.metrics_from(0)
    assert [row["step"] for row in rows] == [0, 1]
    assert offset == record.metrics_file.stat().st_size
    with record.metrics_file.open("a") as file:
        file.write('{"a": 2.0, "st')
    assert record.metrics() == rows
    assert record.metrics_from(offset) == ([], offset)
    with record.metrics_file.open("a") as file:
        file.write('ep": 2}\n')
    end = record.metrics_file.stat().st_size
    assert record.metrics_from(offset) == ([{"a": 2.0, "step": 2}], end)
    assert record.metrics_from(end) == ([], end)


def test_a_resumed_run_drops_later_steps_and_the_torn_line(record):
    for step in range(5):
        record.log(step, {"a": step / 3})
        record.log_samples(step, [{"response": "x"}, {"response": "y"}])
        record.log_questions(step, [{"task": "a", "pass_at_1": [step % 2, 0.5]}])
    lines = record.metrics_file.read_text().splitlines(keepends=True)
    for path in (record.metrics_file, record.samples_file, record.questions_file):
        with path.open("a") as file:
            file.write('{"torn')
    record.truncate_after(4)
    assert record.metrics_file.read_text() == "".join(lines)
    record.truncate_after(2)
    assert record.metrics_file.read_text() == "".join(lines[:3])
    assert [row["step"] for row in record.samples()] == [0, 0, 1, 1, 2, 2]
    assert record.questions()[1:] == [
        {"step": step, "task": "a", "pass_at_1": [step % 2, 0.5]} for step in (1, 2)
    ]
    record.log(3, {"a": 1.0})
    assert record.metrics_file.read_text() == "".join(lines[:3]) + lines[3]
    record.truncate_after(3)
    assert [row["step"] for row in record.metrics()] == [0, 1, 2, 3]
    record.truncate_after(-1)  # a run that begins anew
    assert record.metrics_file.read_bytes() == record.samples_file.read_bytes() == b""
    assert record.questions_file.read_bytes() == b""


def test_a_folder_without_a_record_is_one_of_no_steps(record):
    record.truncate_after(3)
    assert record.metrics() == record.samples() == []
    assert record.summary() is None


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"a": 1.0}'])
def test_a_line_that_no_run_wrote_is_named(record, line):
    record.log(1, {"a": 1.0})
    with record.metrics_file.open("a") as file:
        file.write(f"{line}\n")
    record.log(2, {"a": 1.0})
    offset = record.metrics_file.read_bytes().index(b"\n") + 1
    for start in (0, offset):  # it is named by its place in the whole file
        with pytest.raises(InputError, match=r"line 2 is not a JSON object with the key \"step\""):
            record.metrics_from(start)


def test_kill_loses_no_line_that_was_logged(tmp_path):
    program = (
        "import sys, pathlib; from rl4p.runs.record import Record\n"
        "record = Record(pathlib.Path(sys.argv[1]))\n"
        "for step in range(10**9):\n"
        "    record.log(step, {'a': 1 / (step + 1)}); print(step, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        while process.stdout.readline() != "200\n":
            pass
        process.send_signal(signal.SIGKILL)
        logged = 200 + len([line for line in process.stdout if line.endswith("\n")])
    steps = [row["step"] for row in Record(tmp_path).metrics()]
    assert steps == list(range(len(steps)))
    assert len(steps) > logged


def test_what_cannot_be_written_is_one_sentence(record):
    record.metrics_file.mkdir()
    with pytest.raises(RunError, match=r"^Cannot write .*metrics\.jsonl: Is a directory\.$"):
        record.log(1, {"a": 1.0})
    with pytest.raises(RunError, match=r"^Cannot write .*metrics\.jsonl: Is a directory\.$"):
        replace_file(record.metrics_file, "new")


def test_the_summary_is_replaced_whole_and_holds_valid_json(record):
    record.write_summary({"status": "stopped", "best": {"a": math.nan, "b": [-math.inf]}})
    text = (record.folder / "summary.json").read_text()
    assert text.endswith("}\n")
    best = {"a": "NaN", "b": ["-Infinity"]}
    assert json.loads(text, parse_constant=refuse) == {"status": "stopped", "best": best}
    record.write_summary({"status": "finished", "step": 2})
    assert record.summary() == {"status": "finished", "step": 2}
    assert [path.name for path in record.folder.iterdir()] == ["summary.json"]


def test_a_run_is_described_as_it_was_resolved(record):
    config = {"seed": 3, "data": {"path": None, "names": ["é", "x"]}, "a": 1e-4}
    record.describe(config, {"packages": {"jax": "0.10"}, "share": math.inf})
    text = (record.folder / "config.yaml").read_text()
    assert yaml.safe_load(text) == config
    assert list(yaml.safe_load(text)) == ["seed", "data", "a"]
    assert "é" in text
    environment = json.loads(
        (record.folder / "environment.json").read_text(), parse_constant=refuse
    )
    assert environment == {"packages": {"jax": "0.10"}, "share": "Infinity"}
    record.describe({"seed": 4}, {})
    assert yaml.safe_load((record.folder / "config.yaml").read_text()) == {"seed": 4}
    assert {path.name for path in record.folder.iterdir()} == {"config.yaml", "environment.json"}


@pytest.mark.parametrize("content", ["new", b"new"], ids=["text", "bytes"])
def test_a_file_is_replaced_by_text_or_bytes(tmp_path, content):
    replace_file(tmp_path / "x.json", "a much longer text")
    replace_file(tmp_path / "x.json", content)
    assert (tmp_path / "x.json").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_disk_that_fills_up_leaves_the_old_file_whole(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    path.write_text("old")
    write = Path.write_bytes

    def half(self, data):
        write(self, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", half)
    with pytest.raises(
        RunError, match=r"^Cannot write .*summary\.json: No space left on device\.$"
    ):
        replace_file(path, "new")
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["summary.json"]  # which leaves room


def test_the_summary_has_room_on_a_full_disk(record, monkeypatch):
    record.reserve()
    (reserved,) = record.folder.iterdir()
    assert 512 * reserved.stat().st_blocks >= ROOM == reserved.stat().st_size
    seen = []
    monkeypatch.setattr(
        "rl4p.runs.record.replace_file", lambda *_: seen.extend(record.folder.iterdir())
    )
    record.write_summary({"status": "failed"})
    assert seen == []


def test_the_lines_of_a_step_are_one_write(record, monkeypatch):
    """After `kill -9` the lines are all written, or none is, or only the last one is torn."""
    record.log_samples(0, [{"response": "first"}])
    opened, plain = [], Path.open

    def watched(self, *args, **kwargs):
        file = plain(self, *args, **kwargs)
        writes = []
        opened.append((file, writes))

        class Watched:
            def __enter__(self):
                return self

            def __exit__(self, *error):
                file.close()

            def write(self, data):
                writes.append(data)
                return file.write(data)

        return Watched()

    monkeypatch.setattr(Path, "open", watched)
    record.log_samples(1, [{"response": "x" * 100_000}, {"response": "y"}])
    monkeypatch.undo()
    ((file, writes),) = opened
    assert not hasattr(file, "raw")  # a kill would lose a buffer
    assert [data.count(b"\n") for data in writes] == [2]
    assert [row["step"] for row in record.samples()] == [0, 1, 1]


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ((1, 2, 3, 4, 5), "has no line of step 0: replace it by a copy"),
        ((0, 2, 5), "has no line of step 1, 3 to 4: replace it by a copy"),
        ((0, 1, 2), "has no line of step 3 to 5: replace it by a copy"),
        ((0, 1, 1, 2, 3, 4, 5), "line 3 is of step 1, after step 1: replace it by a copy"),
        ((0, 2, 1, 3, 4, 5), "line 3 is of step 1, after step 2: replace it by a copy"),
        ((), "has no line of step 0 to 5: replace it by a copy"),
    ],
)
def test_a_record_with_a_gap_is_refused(record, kept, said):
    record.metrics_file.touch()
    for step in (*kept, 7):  # what follows is repeated anyway
        record.log(step, {"a": 1.0})
    before = record.metrics_file.read_bytes()
    with pytest.raises(InputError, match=rf"^{record.metrics_file}\b.*{said}"):
        record.refuse_gaps(5)
    assert record.metrics_file.read_bytes() == before


def test_a_record_without_a_gap_is_accepted_and_an_absent_one_is_not(record):
    with pytest.raises(InputError, match=rf"^{record.metrics_file} is missing: replace it by a"):
        record.refuse_gaps(2)
    for step in (0, 1, 2, 4):
        record.log(step, {"a": 1.0})
    record.refuse_gaps(2)


@pytest.mark.parametrize("value", ["[1]", "null", '"x"', "{}"])
@pytest.mark.parametrize("key", ["a", "step"])
def test_a_value_that_is_no_number_is_refused_with_its_line(record, key, value):
    record.log(0, {"a": 1.0})
    with record.metrics_file.open("a") as file:
        file.write(json.dumps({"a": 1.0, "step": 1} | {key: json.loads(value)}) + "\n")
    with pytest.raises(InputError, match=r"metrics\.jsonl, line 2 has a value that is not a nu"):
        record.metrics()


def test_what_resuming_changes_is_recorded_but_not_how_a_start_is_watched(record):
    before = {
        "steps": 5,
        "seed": 0,
        "optimizer": {"learning_rate": 0.1, "b": [1]},
        "tracker": {"a": 1},
    }
    record.log_changes(3, before)  # there is no config.yaml yet
    record.describe(before, {})
    changed = {**before, "steps": 9, "tracker": {"a": 2}, "resume": "x"}
    changed["optimizer"] = {"learning_rate": 0.2, "b": [1]}
    record.log_changes(3, changed)
    record.describe(changed, {})
    record.log_changes(7, changed)
    assert record.changes() == [
        {"step": 3, "key": "optimizer.learning_rate", "before": 0.1, "after": 0.2},
        {"step": 3, "key": "steps", "before": 5, "after": 9},
    ]
