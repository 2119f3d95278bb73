"""Tests uploads with a real checkpoint, a real export and a SQLite store."""

import dataclasses
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace

import mlflow
import numpy as np
import pytest
import yaml
from mlflow.store.artifact.artifact_repo import verify_artifact_path
from mlflow.utils.uri import validate_path_is_safe
from mlflow.utils.validation import (
    _validate_metric_name,
    _validate_param_name,
    _validate_tag_name,
)
from omegaconf import OmegaConf

from rl4p.configuration import compose
from rl4p.export import main
from rl4p.runs.build import build
from rl4p.runs.checkpoint import Orbax
from rl4p.runs.folder import run_on_cpu
from rl4p.runs.record import Record
from rl4p.runs.tracker import mirror as mirroring
from rl4p.runs.tracker.description import Description
from rl4p.runs.tracker.mirror import (
    IDENTITY,
    PARENT,
    SENT,
    STEP,
    TABLE,
    MLflowMirror,
    steps_of,
)

SMALL = (
    "model=scratch", "model.width=32", "model.layers=1", "model.heads=2", "data.train_size=20",
    "data.held_out_size=4", "prompts_per_step=4", "group_size=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Returns the folder of a run with a checkpoint of step 7."""
    folder = tmp_path_factory.mktemp("run")
    config = compose(SMALL)
    (folder / ".hydra").mkdir()
    OmegaConf.save(config, folder / ".hydra" / "config.yaml")
    record = Record(folder)
    record.describe(OmegaConf.to_container(config, resolve=True), {})
    record.log(7, {"reward/mean": 0.5})
    summary = {"params_sha256": "0a1b", "evaluation": {"last": {"eval/sums/pass_at_1": 0.75}}}
    record.write_summary({"status": "finished"} | summary)
    experiment = build(config)
    state = experiment.state
    state = type(state)(**(vars(state) | {"step": np.int32(7)}))
    with Orbax().open(folder, experiment.loop.stateful) as saved:
        saved.save(state)
    return folder


def test_a_run_without_a_checkpoint_has_none(record, client):
    assert steps_of(record.folder / "checkpoints") == []
    MLflowMirror(client, "12", record.folder).close("finished")
    assert "checkpoints" not in client.tags


def test_steps_are_in_the_order_of_numbers(tmp_path):
    for name in ("9", "10", "11.orbax-checkpoint-tmp"):
        (tmp_path / name).mkdir()
    assert steps_of(tmp_path) == [9, 10]


@pytest.mark.slow
def test_a_run_that_finishes_is_a_version_of_the_model(made, store, tmp_path, monkeypatch):
    tracker = dataclasses.replace(store, register="adder")
    assert tracker.open(made).finish("stopped")
    client, experiment = store.connect()
    assert not client.search_model_versions("name = 'adder'")
    assert tracker.open(made).finish("finished")
    assert tracker.open(made).finish("finished")  # again: no second version
    (version,) = client.search_model_versions("name = 'adder'")
    (run,) = client.search_runs([experiment])
    assert (version.version, version.run_id) == ("1", run.info.run_id) or version.version == 1
    assert (version.tags[STEP], version.tags["params_sha256"]) == ("7", "0a1b")
    assert version.description == f"{made} after step 7; eval/sums/pass_at_1 = 0.75"
    assert run.data.tags["registered"] == "adder"
    assert not list(made.glob("tmp*"))  # the export was temporary

    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    monkeypatch.setenv("MLFLOW_REGISTRY_URI", store.uri)
    place = mlflow.artifacts.download_artifacts("models:/adder/1", dst_path=str(tmp_path / "out"))
    assert main([f"run={made}", f"out={tmp_path / 'exported'}"]) == 0
    exported = {path.name: path.read_bytes() for path in (tmp_path / "exported").iterdir()}
    assert {path.name: path.read_bytes() for path in Path(place).iterdir()} == exported


@pytest.mark.slow
def test_a_checkpoint_is_uploaded_once_on_request(made, store):
    tracker = dataclasses.replace(store, upload_checkpoints=True)
    for _ in range(2):
        assert tracker.open(made).finish("stopped")
    client, experiment = store.connect()
    (run,) = client.search_runs([experiment])
    names = {file.path for file in client.list_artifacts(run.info.run_id, "checkpoints/7")}
    assert names == {f"checkpoints/7/{path.name}" for path in (made / "checkpoints/7").iterdir()}


@pytest.mark.slow
def test_a_policy_that_cannot_be_exported_is_reported(store, record, caplog):
    (record.folder / "checkpoints/7").mkdir(parents=True)
    tracked = dataclasses.replace(store, register="adder").open(record.folder)
    assert not tracked.finish("finished")
    (warning,) = caplog.records
    assert "could not be exported: run=" in warning.getMessage()
    assert "is not the folder of a run" in warning.getMessage()


@pytest.mark.slow
def test_a_run_without_a_checkpoint_registers_nothing_and_says_so(store, record, caplog):
    tracked = dataclasses.replace(store, register="adder").open(record.folder)
    assert not tracked.finish("finished")
    assert "has no checkpoint, so tracker.register=adder" in caplog.records[0].getMessage()


def test_the_trust_of_the_run_is_passed_on(monkeypatch):
    commands = []
    monkeypatch.setattr(
        "rl4p.runs.folder.subprocess.run",
        lambda command, **options: commands.append(command) or type("Done", (), {"returncode": 0}),
    )
    run_on_cpu("export", ["step=7"], ("mine", "ours"))
    assert commands[0][-2:] == ["step=7", "trusted_targets=[mine,ours]"]


class Client:
    """A store that records the data it receives, and may know a run already."""

    def __init__(self, **tags):
        self.batches, self.files, self.tags, self.ended = [], [], {}, None
        self.params, self.sizes, self.updates, self.created = {}, [], [], []
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
        self.sizes.append(len(params))
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

    def get_run(self, run):
        metrics = {name: value for name, value, _, _ in self.sent()}
        return SimpleNamespace(data=SimpleNamespace(metrics=metrics))

    def set_experiment_tag(self, experiment, name, value):
        self.view = name, value
        assert experiment == "12"

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
    assert len(client.params) == 8


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
    assert [len(batch) for batch in client.batches if batch] == [1000, 200]
    assert sent == ["1", "2"]


def test_a_step_that_fills_a_batch_to_the_last_place_is_done(record, client):
    record.log(0, {f"m{i:04}": 1.0 for i in range(1000)})
    MLflowMirror(client, "12", record.folder).send_metrics()
    assert [len(batch) for batch in client.batches if batch] == [1000]
    assert client.tags[SENT] == "0"


def test_files_stand_under_their_path_in_the_folder(record, client):
    (record.folder / "plots").mkdir()
    for name in ("plots/b.png", "plots/a.png", "samples.jsonl"):
        (record.folder / name).touch()
    mirror = MLflowMirror(client, "12", record.folder)
    client.files.clear()
    mirror.send_files("samples.jsonl", "plots/*", "absent.json")
    assert client.files == [("samples.jsonl", None), ("a.png", "plots"), ("b.png", "plots")]


def test_no_two_folders_share_a_place_that_mlflow_takes(record, client):
    """MLflow refuses # and a backslash, and decodes %."""
    names = ["step=1, é (b)", "a#1", "a#2", "a%41", "aA", "a\\b", "a_b", "100%", "a_1 12345678"]
    for name in names:
        (record.folder / "evaluation" / name).mkdir(parents=True)
        (record.folder / "evaluation" / name / "x.json").touch()
    mirror = MLflowMirror(client, "12", record.folder)
    client.files.clear()
    mirror.send_files("evaluation/**/*.json")
    places = [place for _, place in client.files]
    assert len(set(places)) == len(names)
    assert {f"evaluation/{name}" for name in ("step=1, é (b)", "aA", "a_b")} < set(places)
    for place in places:
        verify_artifact_path(place)
        assert validate_path_is_safe(place) == place


def test_the_table_has_a_row_for_each_of_the_newest_samples(record, client, monkeypatch):
    monkeypatch.setattr(mirroring, "ROWS_OF_TABLE", 2)
    MLflowMirror(client, "12", record.folder).close("finished")
    assert not hasattr(client, "table")  # without samples there is none
    assert "mlflow.loggedArtifacts" not in client.tags
    record.log_samples(1, [{"response": "x"}])
    graded = {"response": "y", "terms": {"correct": 1.0}, "tokens": {"ids": [1], "texts": ["y"]}}
    record.log_samples(2, [graded, {"response": "z"}])
    mirror = MLflowMirror(client, "12", record.folder)
    mirror.close("finished")
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
    "name", ["reward/mean", "é-1:2", "数学/pass_at_1", "a b.c", "x" * 250, "a/b c/d", "_", "a_b"]
)
def test_names_that_mlflow_takes_stay(name):
    assert mirroring.mlflow_key(name) == name


@pytest.mark.parametrize(
    ("name", "readable"),
    [
        ("eval/level 5 (hard), v@1/pass_at_1", r"eval/level 5 _hard__ v_1 [0-9a-f]{8}/pass_at_1"),
        ("model@teacher", r"model_teacher [0-9a-f]{8}"),
        ("/a//b/../c/", r"_ e3b0c442/a/_ e3b0c442/b/_ 5ec1f7e7/c/_ e3b0c442"),
        ("..", r"_ 5ec1f7e7"),
        ("", "_ e3b0c442"),
        ("x" * 251, "x{241} [0-9a-f]{8}"),
        ("a_b 1a2b3c4d", r"a_b 1a2b3c4d [0-9a-f]{8}"),
        (" a", r"a [0-9a-f]{8}"),
        ("..a/b", r"a [0-9a-f]{8}/b"),
        ("a\n", r"a_ [0-9a-f]{8}"),
        ("\ud800", r"_ [0-9a-f]{8}"),
    ],
)
def test_other_names_get_a_digest_of_what_was_wrong(name, readable):
    assert re.fullmatch(readable, mirroring.mlflow_key(name)), mirroring.mlflow_key(name)


COLLISIONS = [
    ("level 5 (hard), v@1", "level 5 [hard], v@1"),
    ("a@b", "a_b"),
    ("a+b", "a*b"),
    ("50%", "50$"),
    ("a//b", "a/b"),
    ("a/./b", "a/b"),
    ("a/../b", "b"),
    ("/a", "a"),
    ("a/", "a"),
    (" a", "a"),
    (".", ""),
    ("C#", "C "),
    ("x" * 250 + "a", "x" * 250 + "b"),
    ("x" * 251, "x" * 252),
    ("a\u0301", "á"),
    ("a\tb", "a\nb"),
    ("a\ud800", "a\ud801"),
]


@pytest.mark.parametrize(("one", "other"), COLLISIONS, ids=repr)
def test_different_names_have_different_keys_which_mlflow_takes(one, other):
    keys = [mirroring.mlflow_key(name) for name in (one, other)]
    again = [mirroring.mlflow_key(key) for key in keys]  # a key as a name is no other name's key
    assert len({*keys, *(x for x, key in zip(again, keys, strict=True) if x != key)}) >= 2
    assert keys[0] != keys[1]
    for key in (*keys, *again):
        _validate_metric_name(key)
        _validate_param_name(key)
        _validate_tag_name(key)
        assert len(key) <= 250


@pytest.mark.slow
def test_no_two_of_many_odd_names_share_a_key():
    random = np.random.default_rng(0)
    letters = np.array(list("ab/. _@%() \n-:é0f"))
    names = {"".join(random.choice(letters, n)) for n in random.integers(0, 7, 20_000)}
    names |= {mirroring.mlflow_key(name) for name in names}
    keys = {mirroring.mlflow_key(name) for name in names}
    assert len(keys) == len(names) > 10_000
    for key in keys:
        _validate_metric_name(key)


def test_more_parameters_than_a_batch_takes_are_all_sent(record, client):
    overrides = record.folder / ".hydra" / "overrides.yaml"
    overrides.parent.mkdir()
    overrides.write_text(yaml.safe_dump([f"+own.key_{i}={i}" for i in range(230)]))
    MLflowMirror(client, "12", record.folder)
    assert {f"own.key_{i}" for i in range(230)} <= client.params.keys()
    assert max(client.sizes) <= 100


def test_tags_are_what_is_flat_of_the_environment(record, client):
    environment = {"git_commit": "0a", "git_dirty": True, "devices": 8, "packages": {"jax": "1"}}
    record.describe({}, environment)
    MLflowMirror(client, "12", record.folder)
    assert client.tags == {
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
