import os

import pytest
import yaml

from rl4p.runs.tracker.description import Description, options_of, swept


def hydra_of(record, *, overrides=(), choices=None, cwd="."):
    """Writes the files that Hydra saves in the folder of a run."""
    folder = record.folder / ".hydra"
    folder.mkdir()
    runtime = {"choices": choices or {}, "cwd": str(cwd)}
    (folder / "hydra.yaml").write_text(yaml.safe_dump({"hydra": {"runtime": runtime}}))
    (folder / "overrides.yaml").write_text(yaml.safe_dump(list(overrides)))


def sweep_of(record, *task, params=None):
    """Writes the file that Hydra saves in the folder of a sweep."""
    hydra = {"overrides": {"task": list(task)}, "sweeper": {"params": params}}
    path = record.folder.parent / "multirun.yaml"
    path.write_text(yaml.safe_dump({"hydra": hydra}))


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (
            ["seed=9", "+update.clip_high=0.3", "tracker=none", "hydra.run.dir=x", "~kl"],
            "seed=9 update.clip_high=0.3 kl=",
        ),
        (
            ["model.path=/home/me/models/Qwen3-0.6B", "data.path=a/b"],
            "model.path=Qwen3-0.6B data.path=a/b",  # of an absolute path the last part
        ),
        (
            [f"key_{i}={'x' * 20}" for i in range(20)],
            (" ".join(f"key_{i}={'x' * 20}" for i in range(20)))[:119] + "…",
        ),
    ],
)
def test_a_single_run_is_named_by_its_overrides(record, overrides, name):
    hydra_of(record, overrides=overrides)
    description = Description(record.folder)
    assert description.name == name
    assert description.sweep is None


def test_a_run_without_overrides_is_named_by_its_model_its_task_and_its_date(record, monkeypatch):
    hydra_of(record, choices={"model": "tiny", "data": "arithmetic"}, overrides=["tracker=csv"])
    os.utime(record.folder / "config.yaml", (1795000000, 1795000000))
    name = Description(record.folder).name
    assert name.startswith("tiny arithmetic 2026-11-")


def test_a_pretrained_model_is_named_by_its_folder(record):
    hydra_of(record, choices={"model": "pretrained", "data": "gsm8k"})
    assert Description(record.folder).name.startswith("tiny gsm8k 20")  # policies/tiny
    assert Description(record.folder).parameters["model"] == "tiny"


@pytest.mark.parametrize(
    ("overrides", "task", "params", "name"),
    [
        (
            ["steps=5", "advantage=rloo", "seed=2"],
            ["steps=5", "advantage=grpo,rloo", "seed=range(3)"],
            None,
            "advantage=rloo seed=2",
        ),
        (["sweep=seeds", "seed=2"], ["sweep=seeds"], {"seed": "0,1,2"}, "seed=2"),  # of a preset
    ],
)
def test_a_job_of_a_sweep_is_named_by_what_differs(record, overrides, task, params, name):
    hydra_of(record, overrides=overrides)
    sweep_of(record, *task, params=params)
    description = Description(record.folder)
    assert (description.name, description.sweep) == (name, "runs/2026-11-21")


@pytest.mark.parametrize(
    ("task", "params", "found"),
    [
        (["seed=0,1", "steps=5"], {}, {"seed": "0,1"}),
        (["+a=1,2", "b=range(2)"], {}, {"a": "1,2", "b": "range(2)"}),
        (["kl=choice(none,fixed)"], {}, {"kl": "choice(none,fixed)"}),
        (["tracker.uri=a,b", "hydra.x=1,2"], {}, {}),
        (["seed=7"], {"seed": "0,1,2", "steps": "1,2"}, {"steps": "1,2"}),
        (["x=[1,2]", "y={a:1,b:2}", "z='1,2'"], {}, {}),
    ],
)  # fmt: skip
def test_what_is_swept(task, params, found):
    assert swept(task, params) == found


def test_parameters_are_sizes_choices_classes_and_overrides(record):
    config = {
        "seed": 3,
        "advantage": {"_target_": "mine.Advantage"},
        "reward": {
            "_target_": "rl4p.reward.weighted.Weighted",
            "terms": {"brief": {"_target_": "mine.Brief"}, "right": {"_target_": "rl4p.R"}},
        },
        "optimizer": {"_target_": "rl4p.x.AdamW", "learning_rate": 2e-4},
        "data": {"_target_": "rl4p.data.files.JSONL", "path": None},
        "kl": {"_target_": "rl4p.learner.kl.Fixed"},
    }
    record.describe(config, {})
    overrides = ["seed=9", "++a.b=x=y", "~c", "tracker.uri=sqlite\\:///x.db", r"note=a\,b"]
    hydra_of(record, overrides=overrides, choices={"advantage": "own", "kl": "fixed"})
    assert Description(record.folder).parameters == {
        "seed": "9",
        "advantage": "own",
        "advantage._target_": "mine.Advantage",
        "reward": "rl4p.reward.weighted.Weighted",
        "reward.terms.brief._target_": "mine.Brief",
        "optimizer": "rl4p.x.AdamW",
        "optimizer.learning_rate": "0.0002",
        "data": "rl4p.data.files.JSONL",
        "a.b": "x=y",
        "c": "",
        "note": "a,b",
    }


def test_the_default_run_has_about_twenty_parameters(record):
    from omegaconf import OmegaConf

    from rl4p.configuration import compose

    record.describe(OmegaConf.to_container(compose(), resolve=True), {})
    hydra_of(record, choices={"model": "tiny", "data": "arithmetic", "advantage": "grpo"})
    parameters = Description(record.folder).parameters
    assert 12 <= len(parameters) <= 20
    assert parameters["advantage"] == "grpo"
    assert not [key for key in parameters if key.endswith("_target_")]  # the options say it


def test_data_sets_are_as_the_run_recorded_them(record):
    assert Description(record.folder).data_sets[1]["rows"] == 2
    record.describe({}, {})
    assert Description(record.folder).data_sets == []


MLFLOW = "rl4p.runs.tracker.mlflow.MLflow"
NODE = {"_target_": MLFLOW, "uri": "b"}


@pytest.mark.parametrize(
    ("tracker", "found"),
    [
        ({"_target_": MLFLOW, "uri": "a"}, {"uri": "a"}),
        ({"_target_": "x", "trackers": {"a": {"_target_": "y"}, "m": NODE}}, {"uri": "b"}),
        ({"_target_": "mine.MLflow", "uri": "a"}, None),
        ({"_target_": "x.Several", "uri": "a", "trackers": {}}, None),
        (None, None),
    ],
)  # fmt: skip
def test_the_options_of_one_of_several_trackers(tracker, found):
    assert options_of(tracker, MLFLOW) == found


def test_an_evaluation_has_its_own_name_and_command(record):
    config = yaml.safe_load((record.folder / "config.yaml").read_text())
    command = "python -m rl4p.evaluate run=a out=b"
    record.describe(config, {"kind": "evaluation", "command": command})
    description = Description(record.folder)
    assert description.is_evaluation
    assert description.name.startswith("evaluation ")
    assert description.command == command
