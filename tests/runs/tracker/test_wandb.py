"""Tests the mirror offline: wandb writes files into the run folder, which are read back."""

import json
import socket

import pytest
from wandb.proto.wandb_internal_pb2 import Record

from rl4p.base.errors import InputError
from rl4p.runs.tracker import wandb as tracking
from rl4p.runs.tracker.description import Description
from rl4p.runs.tracker.wandb import WandB
from tests.support.trackers import wait_for

HEADER, BLOCK = 7, 32768  # bytes, of the file and of a part in it


@pytest.mark.parametrize("folder", ["wandb", ".wandb"])
def test_a_checkout_names_no_server_for_the_key(tmp_path, monkeypatch, folder):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WANDB_BASE_URL", raising=False)
    (tmp_path / folder).mkdir()
    settings = tmp_path / folder / "settings"
    settings.write_text("[default]\nproject = x\n")
    WandB()
    settings.write_text("[default]\nbase_url = http://evil\n")
    with pytest.raises(InputError, match="which would get your API key: set WANDB_BASE_URL"):
        WandB()
    monkeypatch.setenv("WANDB_BASE_URL", "http://localhost")
    WandB()


def read(path):
    """Returns the records of a file of wandb, which is a log of LevelDB."""
    data, place, parts, found = path.read_bytes(), HEADER, b"", []
    while place + 7 <= len(data):
        if BLOCK - place % BLOCK < 7:  # too little for the next part
            place += BLOCK - place % BLOCK
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            found.append(Record.FromString(parts))
            parts = b""
    return found


def history(record):
    """Returns the metrics of all files in the order of their steps."""
    files = record.folder.glob("wandb/offline-run-*/*.wandb")
    found = [x.history.item for path in files for x in read(path) if x.HasField("history")]
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
        for items in found
    ]
    return sorted(rows, key=lambda row: row["_step"])


def offline(**options):
    return WandB(mode="offline", close_timeout_seconds=60.0, **options)


@pytest.mark.slow
def test_a_run_is_written_offline_and_uses_no_network(record, monkeypatch):
    """The address of the server is one that would notice a connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{server.getsockname()[1]}")
        record.describe({"seed": 4}, {"git_commit": "0a1b2c"})
        before = (record.folder / "config.yaml").read_text()
        tracked = offline(project="sums").open(record.folder)
        record.log(0, {"a": 0.5})
        record.log(1, {"a": 1.0, "time/step": 2.0})
        record.log_samples(1, [{"id": "q1", "response": "1+1=2", "terms": {"correct": 1.0}}])
        tracked.log(1, {})
        assert tracked.finish("finished")
        with pytest.raises(BlockingIOError):
            server.accept()
    wait_for(lambda: len(history(record)) == 2)  # wandb's process writes a moment later
    assert [(row["_step"], row.get("a")) for row in history(record)] == [(0, 0.5), (1, 1.0)]
    (path,) = record.folder.glob("wandb/offline-run-*/*.wandb")
    (run,) = [x.run for x in read(path) if x.HasField("run")]
    assert (run.project, run.notes) == ("sums", "python -m rl4p.train")
    config = {update.key: json.loads(update.value_json) for update in run.config.update}
    assert config["seed"] == "4"
    (table,) = record.folder.glob("wandb/offline-run-*/files/media/table/*.json")
    assert json.loads(table.read_text())["data"] == [["q1", "1+1=2", 1, 1.0]]
    assert (record.folder / "config.yaml").read_text() == before  # not replaced by wandb's


@pytest.mark.slow
def test_a_resumed_run_sends_no_step_again(record):
    for step in range(2):
        record.log(step, {"a": step})
    assert offline().open(record.folder).finish("stopped")
    tracked = offline().open(record.folder)
    record.log(2, {"a": 2.0})
    tracked.log(2, {})
    assert tracked.finish("finished")
    wait_for(lambda: len(history(record)) >= 3)
    assert [(row["_step"], row["a"]) for row in history(record)] == [(0, 0.0), (1, 1.0), (2, 2.0)]


@pytest.mark.parametrize(
    ("variables", "options", "expected"),
    [
        ({}, {}, ("rl4p", None, None, None)),
        ({"WANDB_PROJECT": "sums"}, {}, ("sums", None, None, None)),
        ({"WANDB_PROJECT": "sums"}, {"project": "mine"}, ("mine", None, None, None)),
        ({"WANDB_MODE": "offline"}, {}, ("rl4p", None, None, None)),
        ({"WANDB_MODE": "online"}, {"mode": "offline"}, ("rl4p", "offline", None, None)),
        ({"WANDB_NAME": "a name"}, {}, ("rl4p", None, "a name", None)),
        ({"WANDB_RUN_GROUP": "a group"}, {}, ("rl4p", None, None, "a group")),
    ],
)
def test_variables_decide_where_the_configuration_says_nothing(
    record, variables, options, expected, monkeypatch
):
    """Without a mode, wandb reads WANDB_MODE itself."""
    for name in ("WANDB_PROJECT", "WANDB_MODE", "WANDB_NAME", "WANDB_RUN_GROUP"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    given = {}
    monkeypatch.setattr("wandb.init", lambda **words: given.update(words))
    WandB(**options).mirror(record.folder)
    project, mode, name, group = expected
    assert (given["project"], given["mode"], given["group"]) == (project, mode, group)
    assert given["name"] == (name or Description(record.folder).name)
    assert (given["resume"] is None) == ("offline" in (mode, variables.get("WANDB_MODE")))


def test_a_variable_without_effect_is_named(record, monkeypatch, caplog):
    monkeypatch.setenv("WANDB_RUN_ID", "abc")
    monkeypatch.setattr(tracking, "BackgroundMirror", lambda *_, **__: None)
    WandB().open(record.folder)
    (message,) = caplog.messages
    assert message.startswith("WANDB_RUN_ID has no effect: a run is found by tracker.json")


def test_without_the_package_the_run_does_not_start(monkeypatch):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install wandb"):
        WandB()
