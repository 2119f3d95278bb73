"""Tests the trackers that need no server: none, several at once, a table, event files."""

import csv
import struct
import threading

import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.proto import plugin_hparams_pb2 as hparams_pb2

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.runs.tracker import local
from rl4p.runs.tracker.local import CSV, NoTracker, Several, SeveralRuns, TensorBoard


def test_nothing_is_mirrored_and_nothing_is_missing(tmp_path):
    tracked = NoTracker().open(tmp_path)
    assert tracked.log(1, {"a": 1.0}) is None
    assert tracked.artifact(tmp_path / "absent") is None
    for status in ("finished", "stopped", "failed"):
        assert tracked.finish(status) is True
    assert not list(tmp_path.iterdir())


class Memory:
    """A tracker, and a tracked run, in memory."""

    def __init__(self, *, broken=(), complete=True, before=None):
        self.calls, self.broken, self.complete, self.before = [], broken, complete, before

    def _called(self, name):
        self.calls.append(name)
        if name in self.broken:
            raise RuntimeError("a bug of the tracker")

    def open(self, folder):
        self._called("open")
        return self

    def log(self, step, metrics):
        self._called("log")

    def artifact(self, path):
        self._called("artifact")

    def finish(self, status):
        if self.before is not None:
            self.before.wait()
        self._called("finish")
        return self.complete


ALL = ["open", "log", "artifact", "finish"]


def whole_run(trackers, folder):
    run = SeveralRuns(trackers, folder)
    run.log(1, {"a": 1.0})
    run.artifact(folder)
    return run.finish("finished")


def test_every_tracker_gets_every_call(tmp_path):
    trackers = {"a": Memory(), "b": Memory()}
    assert whole_run(trackers, tmp_path)
    assert [tracker.calls for tracker in trackers.values()] == [ALL, ALL]


@pytest.mark.parametrize("call", ALL)
def test_a_tracker_that_fails_stops_neither_the_run_nor_another(tmp_path, caplog, call):
    other = Memory()
    assert not whole_run({"broken": Memory(broken=[call]), "other": other}, tmp_path)
    assert other.calls == ALL
    (warning,) = caplog.records
    assert "The tracker broken failed, and the run continues: RuntimeError" in warning.getMessage()


def test_a_tracker_that_fails_often_is_reported_once(tmp_path, caplog):
    run = SeveralRuns({"broken": Memory(broken=["log"])}, tmp_path)
    for step in range(3):
        run.log(step, {})
    assert len(caplog.records) == 1


def test_a_part_that_was_not_sent_is_reported(tmp_path):
    assert not whole_run({"a": Memory(), "late": Memory(complete=False)}, tmp_path)


def test_trackers_end_side_by_side(tmp_path):
    """One after the other, the first would wait for ever."""
    together = threading.Barrier(2, timeout=60)
    trackers = {"a": Memory(before=together), "b": Memory(before=together)}
    assert whole_run(trackers, tmp_path)


def test_an_error_of_the_user_is_raised(tmp_path):
    class Wrong(Memory):
        def open(self, folder):
            raise InputError("tracker.uri has no scheme")

    with pytest.raises(InputError, match="no scheme"):
        SeveralRuns({"a": Wrong()}, tmp_path)


def test_no_tracker_at_all_is_refused():
    with pytest.raises(InputError, match=r"write tracker/with=\[mlflow,csv\]"):
        Several(uri="sqlite:///x.db")


def test_the_keys_of_mlflow_stay():
    overrides = ["tracker=several", "tracker/with=[mlflow,csv]", "tracker.uri=sqlite:////x.db"]
    overrides += ["tracker.experiment=mine", "tracker.trackers.mlflow.register=adder"]
    config = compose(overrides)
    trackers = instantiate(config.tracker).trackers
    assert list(trackers) == ["mlflow", "csv"]
    assert trackers["csv"] == CSV()
    mlflow = trackers["mlflow"]
    assert (mlflow.uri, mlflow.experiment, mlflow.register) == ("sqlite:////x.db", "mine", "adder")


def test_several_trackers_mirror_one_record(record):
    run = SeveralRuns({"csv": CSV()}, record.folder)
    record.log(0, {"a": 1.0})
    run.log(0, {"a": 1.0})
    assert run.finish("finished")
    assert (record.folder / "metrics.csv").read_text().splitlines() == ["step,a", "0,1.0"]


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


def events(record):
    """Returns the events of the only file, and the folder that names the run."""
    (path,) = (record.folder / "tensorboard").glob("*/*.tfevents.*")
    data, found = path.read_bytes(), []
    while data:  # length, its checksum, the event, its checksum
        (length,) = struct.unpack("<Q", data[:8])
        found.append(event_pb2.Event.FromString(data[12 : 12 + length]))
        data = data[16 + length :]
    return found, path.parent.name


def scalars(record):
    return [
        (event.step, value.tag, value.simple_value, event.wall_time)
        for event in events(record)[0]
        for value in event.summary.value
        if value.HasField("simple_value")
    ]


def steps(record):
    return [step for step, name, *_ in scalars(record) if name == "a"]


def test_metrics_have_their_steps_and_times(record):
    started = (record.folder / "config.yaml").stat().st_mtime
    record.log(0, {"a": 0.5})
    record.log(1, {"a": 1.0, "time/step": 2.0})
    tracked = TensorBoard().open(record.folder)
    tracked.log(1, {})
    assert tracked.finish("finished")
    assert [row for row in scalars(record) if row[1] == "a"] == [
        (0, "a", 0.5, pytest.approx(started, abs=1e-3)),
        (1, "a", 1.0, pytest.approx(started + 2, abs=1e-3)),
    ]


def test_the_run_is_named_by_what_it_is(record):
    (record.folder / ".hydra").mkdir()
    (record.folder / ".hydra/overrides.yaml").write_text("[advantage=rloo, model.path=a/b]")
    (record.folder / ".hydra/hydra.yaml").write_text("hydra: {}")
    assert TensorBoard().open(record.folder).finish("finished")
    assert events(record)[1] == "advantage=rloo model.path=a_b"


def test_a_resumed_run_is_written_anew_under_the_same_name(record):
    for step in range(3):
        record.log(step, {"a": step})
    assert TensorBoard().open(record.folder).finish("stopped")
    _, name = events(record)
    assert steps(record) == [0, 1, 2]
    (old,) = (record.folder / "tensorboard").glob("*/*.tfevents.*")
    old.rename(old.with_name("events.tfevents.1"))  # within a second, the new name is the old one
    record.truncate_after(1)
    record.describe({"seed": 4}, {})
    tracked = TensorBoard().open(record.folder)
    record.log(2, {"a": 7.0})
    tracked.log(2, {})
    assert tracked.finish("finished")
    assert steps(record) == [0, 1, 2]
    assert [value for step, _, value, _ in scalars(record) if step == 2] == [7.0]
    found, again = events(record)
    assert again == name
    # A TensorBoard that shows the run drops what it read of the old file.
    starts = [event.step for event in found if event.session_log.status == 1]
    assert starts == [0]


def test_parameters_and_samples_are_shown(record):
    record.log(0, {"eval/sums/pass_at_1": 0.5})
    record.log_samples(0, [{"id": "q1", "response": "1+1=2"}])
    assert TensorBoard().open(record.folder).finish("finished")
    values = {value.tag: value for event in events(record)[0] for value in event.summary.value}
    assert b"**response**: 1+1=2" in values["samples/q1/text_summary"].tensor.string_val[0]
    start = hparams_pb2.HParamsPluginData.FromString(
        values["_hparams_/session_start_info"].metadata.plugin_data.content
    )
    assert start.session_start_info.hparams["seed"].string_value == "3"
    experiment = hparams_pb2.HParamsPluginData.FromString(
        values["_hparams_/experiment"].metadata.plugin_data.content
    ).experiment
    names = [info.name.tag for info in experiment.metric_infos]
    assert names == ["eval/sums/pass_at_1", "reward/mean"]


def test_an_abandoned_file_is_closed(record):
    mirror = TensorBoard().mirror(record.folder)
    mirror.close("finished")
    mirror.abandon()
    assert steps(record) == []


def test_without_the_package_the_run_does_not_start(monkeypatch):
    monkeypatch.setattr(local, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install tensorboardX"):
        TensorBoard()
