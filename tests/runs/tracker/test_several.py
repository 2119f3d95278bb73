import threading

import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.runs.tracker.csv import CSV
from rl4p.runs.tracker.several import Several, SeveralRuns


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
