"""Tests the event file by reading it back, record by record."""

import struct

import pytest
from tensorboardX.proto import event_pb2
from tensorboardX.proto import plugin_hparams_pb2 as hparams_pb2

from rl4p.base.errors import InputError
from rl4p.runs.tracker import tensorboard
from rl4p.runs.tracker.tensorboard import TensorBoard


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
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install tensorboardX"):
        TensorBoard()
