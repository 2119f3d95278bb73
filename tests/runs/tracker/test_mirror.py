"""Tests the data that MLflow receives: names, times, parameters and a table of samples."""

import json
import os
from types import SimpleNamespace

import pytest

from rl4p.runs.tracker import mirror as mirroring
from rl4p.runs.tracker.description import Description
from rl4p.runs.tracker.mirror import IDENTITY, PARENT, SENT, TABLE, MLflowMirror


class Client:
    """A store that records the data it receives, and may know a run already."""

    def __init__(self, **tags):
        self.batches, self.files, self.tags, self.ended = [], [], {}, None
        self.params, self.updates, self.created = {}, [], []
        info = SimpleNamespace(run_id="7", start_time=1000)
        data = SimpleNamespace(tags=tags, params={"seed": "3"})
        self.run = SimpleNamespace(info=info, data=data, inputs=SimpleNamespace(dataset_inputs=[]))

    def search_runs(self, experiments, query):
        self.query = experiments, query
        return [self.run] if self.run.data.tags else []

    def create_run(self, experiment, **options):
        self.created.append((experiment, options))
        return self.run

    def update_run(self, run, **options):
        self.updates.append((run, options))

    def log_batch(self, run, metrics=(), params=(), tags=()):
        self.batches.append([(m.key, m.value, m.step, m.timestamp) for m in metrics])
        self.params |= {param.key: param.value for param in params}
        self.tags |= {tag.key: tag.value for tag in tags}

    def log_inputs(self, run, datasets):
        self.inputs = datasets

    def log_artifact(self, run, path, place):
        self.files.append((os.path.basename(path), place))  # noqa: PTH119

    def log_dict(self, run, value, name):
        self.table = name, value

    def set_tag(self, run, name, value):
        self.tags[name] = value

    def set_terminated(self, run, status, end):
        self.ended = status, end

    def sent(self):
        return [metric for batch in self.batches for metric in batch]


@pytest.fixture
def client():
    return Client()


def test_a_run_is_created_once_under_the_name_that_its_folder_keeps(record, client):
    os.utime(record.folder / "config.yaml", (5, 5))
    MLflowMirror(client, "12", record.folder, "0a1b")
    identity = json.loads((record.folder / "tracker.json").read_text())[IDENTITY]
    assert client.query == (["12"], f"tags.`{IDENTITY}` = '{identity}'")
    ((experiment, options),) = client.created
    assert experiment == "12"
    name = Description(record.folder).name
    assert (options["start_time"], options["run_name"]) == (5000, name)
    assert options["tags"][IDENTITY] == identity
    assert client.updates == [("7", {"status": "RUNNING"})]
    assert client.tags[PARENT] == "0a1b"
    assert client.files == [("config.yaml", None), ("environment.json", None)]
    other = Client(**{IDENTITY: identity})
    MLflowMirror(other, "12", record.folder)
    assert other.query == client.query
    assert other.created == []
    assert PARENT not in other.tags


def test_parameters_that_stand_there_are_final(record):
    client = Client(any="tag")
    MLflowMirror(client, "12", record.folder)
    assert "seed" not in client.params
    assert client.params["steps"] == "4"
    assert len(client.params) == 9


def test_data_sets_that_stand_there_are_not_sent_again(record, client):
    MLflowMirror(client, "12", record.folder)
    assert [data_set.tags[0].value for data_set in client.inputs] == ["training", "evaluation"]
    client.run.inputs.dataset_inputs, client.inputs = client.inputs, None
    MLflowMirror(client, "12", record.folder)
    assert client.inputs is None


def test_metrics_are_at_the_start_of_the_run_plus_its_steps(record, client):
    for step in range(3):
        record.log(step, {"a": step, "time/step": 0.5 * step})
    mirror = MLflowMirror(client, "12", record.folder)
    mirror.send_metrics()
    assert [m for m in client.sent() if m[0] == "a"] == [
        ("a", 0.0, 0, 1000),
        ("a", 1.0, 1, 1500),
        ("a", 2.0, 2, 2500),
    ]
    assert client.tags[SENT] == "2"
    before = len(client.batches)
    mirror.send_metrics()
    assert len(client.batches) == before
    record.log(3, {"a": 3.0, "time/step": 1.0})
    mirror.send_metrics()
    assert [m for m in client.batches[-1] if m[0] == "a"] == [("a", 3.0, 3, 3500)]


def test_another_mirror_goes_on_after_the_last_step_that_was_sent(record):
    for step in range(4):
        record.log(step, {"a": step, "time/step": 2.0})
    client = Client(**{SENT: "1"})
    MLflowMirror(client, "12", record.folder).send_metrics()
    assert [m for m in client.sent() if m[0] == "a"] == [
        ("a", 2.0, 2, 7000),  # includes the time of earlier steps
        ("a", 3.0, 3, 9000),
    ]


def test_a_batch_is_as_large_as_mlflow_takes_and_a_divided_step_is_not_done(record, client):
    for step in range(3):
        record.log(step, {f"m{i:03}": 1.0 for i in range(400)})
    mirror = MLflowMirror(client, "12", record.folder)
    sent, log_batch = [], client.log_batch

    def noting(run, metrics=(), params=(), tags=()):
        log_batch(run, metrics, params, tags)
        sent.append(client.tags.get(SENT))

    client.log_batch = noting
    mirror.send_metrics()
    assert [len(batch) for batch in client.batches[1:]] == [1000, 200]
    assert sent == ["1", "2"]


def test_a_step_that_fills_a_batch_to_the_last_place_is_done(record, client):
    record.log(0, {f"m{i:04}": 1.0 for i in range(1000)})
    MLflowMirror(client, "12", record.folder).send_metrics()
    assert [len(batch) for batch in client.batches[1:]] == [1000]
    assert client.tags[SENT] == "0"


def test_files_stand_under_their_path_in_the_folder(record, client):
    (record.folder / "plots").mkdir()
    for name in ("plots/b.png", "plots/a.png", "samples.jsonl"):
        (record.folder / name).touch()
    mirror = MLflowMirror(client, "12", record.folder)
    client.files.clear()
    mirror.send_files("samples.jsonl", "plots/*", "absent.json")
    assert client.files == [("samples.jsonl", None), ("a.png", "plots"), ("b.png", "plots")]


def test_the_table_has_a_row_for_each_of_the_newest_samples(record, client, monkeypatch):
    monkeypatch.setattr(mirroring, "ROWS_OF_TABLE", 2)
    MLflowMirror(client, "12", record.folder).send_table()
    assert not hasattr(client, "table")  # without samples there is none
    assert "mlflow.loggedArtifacts" not in client.tags
    record.log_samples(1, [{"response": "x"}])
    graded = {"response": "y", "terms": {"correct": 1.0}, "tokens": {"ids": [1], "texts": ["y"]}}
    record.log_samples(2, [graded, {"response": "z"}])
    mirror = MLflowMirror(client, "12", record.folder)
    mirror.send_table()
    name, table = client.table
    assert name == TABLE == "samples.json"
    assert table["columns"] == ["response", "step", "correct"]
    assert table["data"] == [["y", 2, 1.0], ["z", 2, None]]
    assert json.loads(client.tags["mlflow.loggedArtifacts"]) == [
        {"path": "samples.json", "type": "table"}
    ]


@pytest.mark.parametrize(
    ("status", "shown"),
    [("finished", "FINISHED"), ("stopped", "KILLED"), ("failed", "FAILED"), ("odd", "KILLED")],
)
def test_the_end_sends_what_is_left_and_when_it_was(record, client, status, shown):
    record.log(0, {"a": 1.0})
    record.write_summary({"status": status})
    os.utime(record.metrics_file, (9, 9))
    mirror = MLflowMirror(client, "12", record.folder)
    client.files.clear()
    mirror.close(status)
    assert [m[0] for m in client.sent()] == ["a"]
    assert [name for name, _ in client.files] == ["config.yaml", "environment.json", "summary.json"]
    assert client.tags["status"] == status
    assert client.ended == (shown, 9000)
    record.metrics_file.unlink()
    MLflowMirror(client, "12", record.folder).close(status)
    assert client.ended == (shown, None)  # a run of no steps ends now


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("reward/mean", "reward/mean"),
        ("pass@1 (%)", "pass_1 ___"),
        ("/a//b/../c/", "a/c"),
        ("..", "_"),
        ("", "_"),
        ("x" * 251, "x" * 250),
        ("é-1:2", "é-1:2"),
    ],
)
def test_names_are_in_letters_that_mlflow_takes(name, key):
    assert mirroring.mlflow_key(name) == key


def test_tags_are_what_is_flat_of_the_environment(record):
    environment = {"git_commit": "0a", "git_dirty": True, "devices": 8, "packages": {"jax": "1"}}
    record.describe({}, environment)
    assert mirroring._tags(Description(record.folder)) == {
        "git_commit": "0a",
        "git_dirty": "True",
        "devices": "8",
        "mlflow.source.git.commit": "0a",
        "folder": str(record.folder),
        "command": "python -m rl4p.train",
    }


def test_a_user_without_a_name_is_unknown(monkeypatch):
    def nobody():
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr(mirroring.getpass, "getuser", nobody)
    assert mirroring.source_tags()["mlflow.user"] == "unknown"


def test_checkpoints_are_linked_and_not_sent(record, client):
    (record.folder / "checkpoints/50").mkdir(parents=True)
    (record.folder / "checkpoints/50/weights").write_bytes(b"12345")
    MLflowMirror(client, "12", record.folder).close("finished")
    name, found = client.table
    assert name == "checkpoints.json"
    place = str(record.folder / "checkpoints")
    assert found == {"folder": place, "steps": [50], "bytes_of_newest": 5}
    assert client.tags["checkpoints"] == place
    assert not [file for file, _ in client.files if file == "weights"]


def test_a_long_value_is_cut_to_what_mlflow_takes(record, client):
    record.describe({"steps": "x" * 7000}, {"note": "y" * 9000})
    MLflowMirror(client, "12", record.folder)
    assert len(client.params["steps"]) == 6000
    assert len(client.tags["note"]) == 8000
