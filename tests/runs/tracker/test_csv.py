import csv

from rl4p.runs.tracker.csv import CSV


def table(record):
    with (record.folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_step_is_a_row_and_a_metric_a_column(record):
    mirror = CSV().mirror(record.folder)
    record.log(0, {"eval/pass_at_1": 0.5})
    record.log(1, {"reward/mean": 0.25})
    mirror.send_metrics()
    assert table(record) == [
        {"step": "0", "eval/pass_at_1": "0.5", "reward/mean": ""},
        {"step": "1", "eval/pass_at_1": "", "reward/mean": "0.25"},
    ]


def test_rows_are_appended_until_there_is_a_new_metric(record):
    mirror = CSV().mirror(record.folder)
    for step in range(2):
        record.log(step, {"a": step})
        mirror.send_metrics()
    first = (record.folder / "metrics.csv").stat().st_ino
    record.log(2, {"a": 2, "b": 1})
    mirror.close("finished")
    assert (record.folder / "metrics.csv").stat().st_ino != first
    assert [row["b"] for row in table(record)] == ["", "", "1.0"]
    assert [row["step"] for row in table(record)] == ["0", "1", "2"]


def test_a_resumed_run_repeats_no_row(record):
    for step in range(3):
        record.log(step, {"a": step})
    CSV().mirror(record.folder).close("stopped")
    record.truncate_after(1)
    tracked = CSV().open(record.folder)
    record.log(2, {"a": 7.0})
    tracked.log(2, {"a": 7.0})
    assert tracked.finish("finished")
    assert [(row["step"], row["a"]) for row in table(record)] == [
        ("0", "0.0"),
        ("1", "1.0"),
        ("2", "7.0"),
    ]


def test_a_run_without_steps_has_an_empty_table(record):
    assert CSV().open(record.folder).finish("failed")
    assert not (record.folder / "metrics.csv").exists()
