import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from rl4p.base.errors import InputError
from rl4p.base.storage import ObjectStore
from rl4p.command import main
from rl4p.command.resume import (
    MAY_CHANGE,
    as_started,
    config_of_run,
    follow_moved_targets,
    followed_by,
    with_config_dir,
    with_local_folder,
)
from rl4p.configuration import compose
from rl4p.configuration.composition import Composer
from rl4p.configuration.quoting import override
from rl4p.configuration.trust import CONF
from rl4p.runs.folder import only_run_in, saved_config


@pytest.fixture(scope="module")
def first_run(toy_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of a run with a reward term and an option that are not the default."""
    folder = tmp_path_factory.mktemp("first") / "run"
    argv = ["+reward.terms.new={_target_:toy.Term,weight:3}", "advantage=other"]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(toy_folder))
        argv += [f"hydra.run.dir={folder}", "hydra/job_logging=disabled"]
        main("toy", lambda config: None, argv=argv, conf=toy_folder / "conf")
    return folder


@pytest.fixture
def started(toy, first_run: Path) -> Path:
    """Returns a copy of `first_run` that a test may change."""
    return Path(shutil.copytree(first_run, toy.folder / "outputs/runs/first"))


def hydra(overrides: str, config: str) -> dict[str, str]:
    """Returns the files of a folder that looks like a run's."""
    folder = "elsewhere/.hydra"
    return {f"{folder}/overrides.yaml": overrides, f"{folder}/config.yaml": config}


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.quick(1)
@pytest.mark.parametrize("absolute", [True, False])
def test_a_run_goes_on_as_it_was_in_its_own_folder(toy, started, absolute):
    given = started if absolute else started.relative_to(toy.folder)
    assert toy.run(f"resume={given}", "steps=9", "evaluation.every=1") == 0
    (config,) = toy.jobs
    assert config.resume == str(started)
    assert (config.steps, config.optimizer.size, config.evaluation.every) == (9, 9, 1)
    assert (config.reward.terms.new.weight, config.advantage.rate) == (3, 0.25)
    assert list(started.parent.iterdir()) == [started]


@pytest.mark.quick(1)
@pytest.mark.parametrize("word", ["resume={}", "resume=auto hydra.run.dir={}"])
def test_a_finished_run_has_nothing_left_to_do_and_stays_as_it_is(toy, started, capsys, word):
    steps = OmegaConf.load(started / ".hydra/config.yaml").steps
    (started / "summary.json").write_text(json.dumps({"status": "finished", "step": steps}))
    (started / "metrics.jsonl").write_text("")
    before = files(started)
    assert toy.run(*word.format(started).split()) == 0
    assert f"is already finished, at step {steps}: add steps=N" in capsys.readouterr().err
    assert (toy.jobs, files(started)) == ([], before)
    assert toy.run(*word.format(started).split(), f"steps={steps + 1}") == 0
    assert len(toy.jobs) == 1


@pytest.mark.quick(1)
@pytest.mark.parametrize("rule", ["target", "patience"])
def test_a_run_that_a_rule_ended_has_nothing_left_to_do_until_it_changes(
    toy, started, capsys, rule
):
    ended = {"status": "finished", "step": 2, "stopped_by": rule}
    (started / "summary.json").write_text(json.dumps(ended))
    assert toy.run(f"resume={started}") == 0
    assert f"at step 2, by stop.{rule}: change it" in capsys.readouterr().err
    assert toy.run(f"resume={started}", "stop.patience=7") == 0
    assert len(toy.jobs) == 1


NAMES = ["a b", "a,b=c", "été ünïcode", "it's", 'say "so"', "both ' and \"", "a (1)", "[a]{b}"]
QUICK = ("a,b=c", "été ünïcode", "both ' and \"")


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in NAMES],
)
def test_a_folder_of_any_name_is_pasted_back_from_the_printed_command(toy, started, name):
    folder = started.rename(started.parent / name)
    pasted = f"printf '%s' {shlex.quote(override('resume', str(folder)))}"
    line = subprocess.run(["bash", "-c", pasted], capture_output=True, text=True, check=True).stdout
    assert toy.run(line, "steps=9") == 0
    assert toy.jobs[-1].resume == str(folder)
    assert toy.run(f"resume={folder.parent.name}/latest") == 2  # no run of this name


@pytest.mark.slow
def test_the_latest_run_is_the_one_that_started_last(toy, started, capsys):
    (started / "metrics.jsonl").write_text("")
    shutil.copytree(started, started.parent / "DATE/old")
    shutil.copytree(started, started.parent / "DATE/no_run")
    (started.parent / "DATE/no_run/metrics.jsonl").unlink()
    for age, name in enumerate(("DATE/no_run", "first", "DATE/old")):
        os.utime(started.parent / name / ".hydra/config.yaml", (1000 - age, 1000 - age))
    assert toy.run("resume=latest", "steps=9") == 0
    assert toy.jobs[-1].resume == str(started)
    os.utime(started.parent / "DATE/old/.hydra/config.yaml")
    os.utime(started / ".hydra/config.yaml", (1, 1))
    assert toy.run("resume=latest", "--cfg", "job") == 0
    assert "DATE/old" in capsys.readouterr().out


def test_without_a_run_there_is_no_latest(toy, capsys):
    assert toy.run("resume=latest") == 2
    expected = f"resume=latest: there is no run under {toy.folder / 'outputs/runs'}.\n"
    assert capsys.readouterr().err == expected


def test_a_folder_inside_a_run_names_the_run(toy, started, capsys):
    (started / "metrics.jsonl").write_text("")
    (started / "checkpoints/3").mkdir(parents=True)
    assert toy.run(f"resume={started}/checkpoints/3") == 2
    assert capsys.readouterr().err.endswith(f": write resume={started}\n")


@pytest.mark.slow
def test_a_run_is_resumed_twice_and_keeps_what_was_changed_first(toy, started):
    assert toy.run(f"resume={started}", "steps=9", "+tracker.mode=total") == 0
    assert toy.run(f"resume={started}", "evaluation.every=1", "+tracker.mode=mean") == 0
    config = toy.jobs[-1]
    assert (config.steps, config.evaluation.every, config.tracker.mode) == (9, 1, "mean")


def test_the_same_command_line_may_be_repeated(toy, started):
    line = ["+reward.terms.new={_target_:toy.Term,weight:3}", "advantage=other"]
    assert toy.run(*line, f"resume={started}") == 0
    assert toy.jobs[-1].reward.terms.new.weight == 3


def test_resume_null_starts_a_run(toy):
    assert toy.run("resume=null") == 0
    assert toy.jobs[-1].resume is None


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("change", "difference"),
    [
        ("seed=3", "seed was 0 and would be 3"),
        ("advantage.rate=0.3", "advantage.rate was 0.25 and would be 0.3"),
        ("advantage=plain", "advantage.rate was 0.25 and would be 0.5"),
        ("advantage=plain", "advantage.size was absent and would be 1"),
        ("~reward.terms.tidy", "reward.terms.tidy.weight was 0.1 and would be absent"),
        ("+rollout.names=[a]", "rollout.names was absent and would be ['a']"),
        ("optimizer.size=6", "optimizer.size was 5 and would be 6"),
        ("experiment=good", "seed was 0 and would be 7"),
    ],
)
def test_another_configuration_is_refused_with_the_difference(
    toy, started, capsys, change, difference
):
    before = files(started)
    assert toy.run(f"resume={started}", change) == 2
    sentence = capsys.readouterr().err
    assert difference in sentence
    assert sentence.count("\n") == 1
    assert not toy.jobs
    assert files(started) == before


@pytest.mark.parametrize(
    ("there", "sentence"),
    [
        ({}, "it does not exist"),
        ({"elsewhere/x": ""}, "No such file"),
        ({"elsewhere": "a file"}, "Not a directory"),
        ({"elsewhere/.hydra/overrides.yaml": "[]"}, "config.yaml: No such file"),
        (hydra("[1", "a: 1"), "cannot be read"),
        (hydra("[]", "a: [1"), "cannot be read"),
        (hydra("[]", "[1]"), "cannot be read"),
        (hydra("[seed]", "a: 1"), "seed is not KEY=VALUE"),
        (hydra("[]", "a: 1"), "a was 1 and would be absent"),
    ],
    ids=str,
)
def test_a_folder_that_is_no_run_is_left_as_it_was(toy, capsys, there, sentence):
    for name, text in there.items():
        (toy.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (toy.folder / name).write_text(text)
    before = files(toy.folder)
    assert toy.run("resume=elsewhere") == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert files(toy.folder) == before
    assert (toy.folder / "elsewhere").exists() == bool(there)


@pytest.mark.slow
def test_a_job_of_a_sweep_is_resumed_alone(toy):
    assert toy.run("sweep=seeds", "advantage=other") == 0
    toy.jobs.clear()
    job = toy.folder / "outputs/sweeps/one/1"
    assert toy.run(f"resume={job}", "steps=9") == 0
    (config,) = toy.jobs
    assert (config.seed, config.steps, config.advantage.rate) == (1, 9, 0.25)
    made = {"0", "1", "2", "multirun.yaml", "jobs.yaml", ".lock"}
    assert {path.name for path in job.parent.iterdir()} == made


@pytest.mark.parametrize("argv", [["-m"], ["-m", "seed=1,2"], ["seed=1,2"]])
def test_a_run_is_not_resumed_as_several(toy, started, capsys, argv):
    assert toy.run(*argv, f"resume={started}") == 2
    assert "resume continues a single run or a whole sweep" in capsys.readouterr().err


def test_resume_in_yaml_is_refused(toy, capsys):
    assert toy.run("experiment=resume") == 2
    assert "Set resume only on the command line" in capsys.readouterr().err


def test_a_run_folder_says_nothing_about_trust(toy, started, capsys):
    overrides = started / ".hydra/overrides.yaml"
    overrides.write_text("['+rollout.inner={_target_:os.system}', 'trusted_targets=[toy,os]']")
    assert toy.run(f"resume={started}") == 2
    assert "rollout.inner._target_=os.system is not trusted" in capsys.readouterr().err


@pytest.mark.slow
def test_a_folder_with_any_name_is_resumed(toy):
    folder = toy.folder / "a=1,b 'c'"
    assert toy.run("hydra.run.dir=\"a=1,b 'c'\"") == 0
    assert toy.run("resume=\"a=1,b 'c'\"") == 0
    assert toy.jobs[-1].resume == str(folder)


CHANGES = (
    *("steps=9", "stop.patience=3", "optimizer.learning_rate=0.5", "evaluation.every=1"),
    *("evaluation.samples=2", "evaluation.pass_at_k=[2]", "evaluation.chosen_by=score"),
    *("evaluation.seed=1", "evaluation.rows=2"),
    *("evaluation.rollout={_target_:toy.Part}", "+evaluation.tasks.more={_target_:toy.Part}"),
    *("samples.count=1", "tracker.size=2", "checkpoint.size=2"),
    *("debug.profile=true", "plan.search=true", "mesh.size=2", "trusted_targets=[toy,mine]"),
    *("allow=/x", "trust=false"),
)


@pytest.mark.slow
def test_what_changes_no_number_may_change(toy, started):
    assert toy.run(f"resume={started}", *CHANGES) == 0
    (config,) = toy.jobs
    assert (config.tracker.size, config.checkpoint.size, config.mesh.size) == (2, 2, 2)
    keys = [change.lstrip("+").partition("=")[0] for change in CHANGES]
    allowed = [key for key in MAY_CHANGE if any(f"{each}.".startswith(f"{key}.") for each in keys)]
    curve = [f"optimizer.{x}" for x in ("schedule", "warmup_steps", "total_steps")]
    curve += ["optimizer.final_fraction", "rollout.annealing.steps"]  # toys lack them
    assert [*allowed, "resume"] == [key for key in MAY_CHANGE if key not in curve]


def test_the_sentence_names_what_may_change(toy, started, capsys):
    assert toy.run(f"resume={started}", "seed=3") == 2
    assert capsys.readouterr().err == (
        f"resume={started} cannot change the configuration: seed was 0 and would be 3 (only steps, "
        "stop, optimizer.learning_rate, optimizer.schedule, optimizer.warmup_steps, "
        "optimizer.total_steps, optimizer.final_fraction, rollout.annealing.steps, "
        "evaluation.every, evaluation.samples, evaluation.pass_at_k, "
        "evaluation.chosen_by, evaluation.seed, evaluation.rows, evaluation.rollout, "
        "evaluation.tasks, samples, tracker, checkpoint, debug, plan, mesh may change).\n"
    )


CHANGED_DEFAULTS = [  # an option, its value in the run, and its default today
    *(("size", 3, 4), ("rate", 1e-5, 0.5), ("rate", float("inf"), 0.5), ("limit", None, 9)),
    *(("limit", 9, None), ("flag", True, False), ("mode", "total", "mean")),
    *(
        ("names", ["a b", "c,d=e", "été", "\n", "\\"], []),
        ("names", [], ["a"]),
        ("listed", [1, 2], [1]),
    ),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("key", "then", "today"), CHANGED_DEFAULTS)
def test_a_changed_default_is_named_with_the_word_that_keeps_the_value(
    toy, capsys, key, then, today
):
    own = toy.folder / "yaml/advantage/own.yaml"
    own.parent.mkdir(parents=True)
    own.write_text(yaml.safe_dump({"_target_": "toy.Part", key: then}))
    where = ["--config-dir", "yaml"]
    assert toy.run(*where, "advantage=own") == 0
    own.write_text(yaml.safe_dump({"_target_": "toy.Part", key: today}))
    assert toy.run(*where, "resume=outputs/runs/one", "seed=3") == 2
    said = capsys.readouterr().err
    assert f"advantage.{key} was {then} and would be {today}" in said
    before, _, after = said.partition("since the run was started: add ")
    assert before.endswith("(defaults have changed ")
    (word,) = shlex.split(after.partition(" to keep its value")[0])
    assert toy.run(*where, "resume=outputs/runs/one", word) == 0
    assert toy.jobs[-1].advantage[key] == then


@pytest.mark.slow
def test_an_option_that_the_run_did_not_have_leaves_its_weights(toy, capsys):
    own = toy.folder / "yaml/advantage/own.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("{_target_: toy.Part, rate: 0.5}")
    where = ["--config-dir", "yaml"]
    assert toy.run(*where, "advantage=own") == 0
    own.write_text("{_target_: toy.Part, rate: 0.25, size: 2}")
    assert toy.run(*where, "resume=outputs/runs/one") == 2
    assert capsys.readouterr().err.endswith(
        "advantage.rate was 0.5 and would be 0.25, advantage.size was absent and would be 2 "
        "(defaults have changed since the run was started: model=run model.run=outputs/runs/one "
        "begins a new run with its weights).\n"
    )


MOVED = {
    "data": ("rl4p.data.jsonl.JSONLines", "rl4p.data.files.JSONLines"),
    "data.sets.a": ("rl4p.data.math.Math", "rl4p.data.files.Math"),
    "reward.terms.a": ("rl4p.reward.math.Math", "rl4p.reward.answers.Math"),
    "kl": ("rl4p.learner.kl.none.NONE", "rl4p.learner.kl.NONE"),
    "critic": ("rl4p.learner.critic.none.NONE", "rl4p.learner.critic.NONE"),
    "entropy": ("rl4p.learner.entropy.adaptive.Adaptive", "rl4p.learner.entropy.Adaptive"),
    "rollout.server": (
        "rl4p.serving.agent_server.AgentServer",
        "rl4p.engine.serving.agent_server.AgentServer",
    ),
    "tracker.trackers[0]": ("rl4p.runs.tracker.csv.CSV", "rl4p.runs.tracker.local.CSV"),
    "model": ("rl4p.model.pretrained.Pretrained", "rl4p.model.pretrained.Pretrained"),
    "reward.terms.b": ("rl4p.reward.absent.Absent", "rl4p.reward.absent.Absent"),
    "reward.terms.c": ("mine.rewards.Math", "mine.rewards.Math"),
}


def test_targets_that_have_moved_are_those_of_today():
    saved = OmegaConf.create({"tracker": {"trackers": [{}]}})
    for key, (then, _) in MOVED.items():
        OmegaConf.update(saved, f"{key}._target_", then, force_add=True)
    follow_moved_targets(saved, CONF)
    assert {key: OmegaConf.select(saved, f"{key}._target_") for key in MOVED} == {
        key: today for key, (_, today) in MOVED.items()
    }


@pytest.mark.slow
def test_how_many_processes_there_are_is_of_each_start(toy):
    several = ["+mesh.coordinator=a:1", "+mesh.processes=2", "+mesh.process=0", "mesh.size=3"]
    node = {"_target_": "toy.anything", "size": 1}
    (toy.folder / "yaml/mesh").mkdir(parents=True)
    (toy.folder / "yaml/mesh/open.yaml").write_text(yaml.safe_dump(node))
    where = ["--config-dir", "yaml"]
    assert toy.run(*where, "mesh=open", *several) == 0
    assert toy.run(*where, "resume=outputs/runs/one", "+mesh.processes=4") == 0
    meshes = [config.mesh for config in toy.jobs]
    one = {"_target_": "toy.anything", "size": 3}
    assert meshes == [
        one | {"coordinator": "a:1", "processes": 2, "process": 0},
        one | {"processes": 4},
    ]


@pytest.mark.slow
def test_an_option_that_is_replaced_takes_its_values_along(toy, started):
    """mesh=other drops the mesh.size of the first start, since another class may not have it."""
    assert toy.run(f"resume={started}", "mesh.size=3") == 0
    (toy.folder / "yaml/mesh").mkdir(parents=True)
    (toy.folder / "yaml/mesh/term.yaml").write_text("{_target_: toy.Term, weight: 1.0}")
    assert toy.run("--config-dir", "yaml", f"resume={started}", "mesh=term") == 0
    assert toy.jobs[-1].mesh == {"_target_": "toy.Term", "weight": 1.0}


@pytest.mark.slow
def test_what_goes_on_is_kept_as_the_runs_own(toy, started):
    assert toy.run(f"resume={started}", "steps=9") == 0
    kept = yaml.safe_load((started / ".hydra/overrides.yaml").read_text())
    assert "steps=9" in kept
    assert "advantage=other" in kept
    assert "+reward.terms.new={_target_:toy.Term,weight:3}" in kept
    config = yaml.safe_load((started / ".hydra/config.yaml").read_text())
    assert config["steps"] == 9


def test_without_targets_a_run_that_goes_on_may_be_looked_at(toy, started, capsys):
    with only_run_in(started):
        assert toy.run(f"resume={started}", "--cfg", "job") == 0
    assert "resume: " in capsys.readouterr().out


# Reading a run in another entry point.


def test_a_saved_configuration_is_that_of_the_run_and_trusts_what_the_caller_says(started):
    config = started / ".hydra/config.yaml"
    config.write_text(config.read_text().replace("- toy", "- os"))
    saved = saved_config(started, ("model", "seed"), ["toy"], ())
    assert (saved.seed, saved.advantage.rate) == (0, 0.25)
    assert saved.trusted_targets == ["toy"]
    assert saved_config(started, ("seed",), (), ()).trusted_targets == []


@pytest.mark.parametrize(
    "text",
    [None, "", "[1]", "a: [1", "seed: 1", "model: {}", "{model: {}, seed: '${a'}"],
    ids=lambda text: repr(text),
)
def test_a_folder_without_a_whole_configuration_is_no_run(tmp_path, text):
    if text is not None:
        (tmp_path / ".hydra").mkdir()
        (tmp_path / ".hydra/config.yaml").write_text(text)
    with pytest.raises(InputError) as refused:
        saved_config(tmp_path, ("model", "seed"), (), ())
    assert str(refused.value) == (
        f"run={tmp_path} is not the folder of a run: .hydra/config.yaml is absent or broken."
    )


PARTS = ("seed", "rollout", "reward", "model", "evaluation")


@pytest.fixture
def read(toy):
    """Returns a function that reads a run with overrides, as a job that uses `PARTS`."""

    def function(run, *overrides, parts=PARTS):
        composer = Composer(toy.conf)
        return config_of_run(composer, str(run), composer.parse(list(overrides)), parts)

    return function


def change(run, key, value):
    """Changes a value in the configuration of a run, as if its default had been another then."""
    path = run / ".hydra" / "config.yaml"
    config = OmegaConf.load(path)
    OmegaConf.update(config, key, value, force_add=True)
    OmegaConf.save(config, path)


def test_a_job_that_reads_a_run_gets_the_parts_that_it_uses(read, started):
    before = files(started)
    config = read(started, "steps=9", "+rollout.flag=true")
    assert (config.reward.terms.new.weight, config.rollout.flag) == (3, True)
    assert (config.steps, config.advantage.rate) == (9, 0.5)  # the advantage is not used
    assert files(started) == before


@pytest.mark.slow
def test_a_part_that_is_not_changed_is_as_the_folder_has_it(read, started):
    change(started, "model.rate", 0.75)
    assert read(started, "rollout.size=2", "seed=4").model.rate == 0.75
    with pytest.raises(InputError) as refused:
        read(started, "model.size=2")
    assert str(refused.value) == (
        "model cannot be changed, because its defaults are others than when "
        f"{started} was run: model.rate was 0.75 and is 0.5."
    )


def test_a_single_value_replaces_whatever_the_run_had(read, started):
    change(started, "seed", 5)
    assert (read(started).seed, read(started, "seed=4").seed) == (5, 4)


def test_a_part_that_the_job_does_not_use_is_not_taken_over(read, started):
    path = started / ".hydra" / "overrides.yaml"
    path.write_text(path.read_text() + "- mesh=plain\n- mesh.size=7\n- trusted_targets=[os]\n")
    config = read(started)
    assert (config.mesh.size, config.trusted_targets) == (1, ["toy"])
    assert read(started, "mesh.size=3").mesh.size == 3


def test_the_processes_of_the_run_are_not_those_of_the_job(read, started):
    change(started, "mesh.processes", 2)
    assert read(started, parts=("mesh",)).mesh.processes is None


def test_a_job_that_reads_a_run_says_what_is_wrong(read, started):
    with pytest.raises(InputError, match="run=nowhere is not the folder of a run"):
        read("nowhere")
    (started / ".hydra" / "config.yaml").write_text("seed: 1")
    with pytest.raises(InputError, match="folder is absent or broken"):
        read(started)


def test_a_broken_interpolation_is_a_sentence(started):
    config = started / ".hydra" / "config.yaml"
    config.write_text(config.read_text() + "\nmore: '${a'\n")
    with pytest.raises(InputError) as refused:
        as_started(Composer(), "run", str(started))
    assert str(refused.value).startswith(f"run={started}: its .hydra folder cannot be read: ")
    assert "\n" not in str(refused.value)


def test_a_configuration_that_was_cut_in_half_is_named(toy, started, capsys):
    config = started / ".hydra" / "config.yaml"
    config.write_text(config.read_text() + "\nmore: ${nowhere}\n")
    assert toy.run(f"resume={started}") == 2
    (sentence,) = capsys.readouterr().err.splitlines()
    assert sentence.startswith(f"resume={started}: its .hydra/config.yaml is broken: more cannot")


def test_an_option_of_a_group_replaces_only_what_has_its_place(toy):
    """A teacher is another model than the policy, although both are options of the group."""
    composer = Composer(toy.conf)
    lines = ["model.size=3", "+model@teacher=plain", "teacher.size=4", "data.size=5"]

    def then(*words):
        return followed_by(composer, lines, composer.parse(list(words)))

    assert then("+model@teacher=plain") == ["model.size=3", "data.size=5", "+model@teacher=plain"]
    assert then("model=plain") == [*lines[1:], "model=plain"]
    assert then("+data@evaluation.tasks.new=plain")[:-1] == lines


@pytest.mark.slow
def test_a_teacher_that_is_named_again_leaves_the_model_as_it_was(toy):
    assert toy.run("model.size=3", "+model@teacher=plain") == 0
    assert toy.run("resume=outputs/runs/one", "+model@teacher=plain", "steps=9") == 0
    assert (toy.jobs[-1].model.size, toy.jobs[-1].steps) == (3, 9)


def test_a_part_that_is_not_resolved_is_named_by_a_job(read, started):
    change(started, "rollout", "${missing}")
    with pytest.raises(InputError, match=r"is broken: Interpolation key 'missing' not found\.$"):
        read(started)


def test_a_run_with_a_config_dir_names_it_if_it_is_left_out(tmp_path):
    own = tmp_path / "own"
    (own / ".hydra").mkdir(parents=True)
    error = InputError("advantage=better does not exist (options: grpo).")
    assert with_config_dir(error, own, Composer()) is error  # there is no hydra.yaml
    written = {"hydra": {"runtime": {"config_sources": [{"provider": "main", "path": "conf"}]}}}
    (own / ".hydra/hydra.yaml").write_text(json.dumps(written))
    assert with_config_dir(error, own, Composer()) is error
    written["hydra"]["runtime"]["config_sources"] += [{"provider": "command-line", "path": "/a"}]
    (own / ".hydra/hydra.yaml").write_text(json.dumps(written))
    assert str(with_config_dir(error, own, Composer())) == (
        "advantage=better does not exist (options: grpo). "
        "The run was started with --config-dir=/a: add it."
    )
    assert with_config_dir(error, own, Composer(config_dir=str(tmp_path))) is error
    (own / ".hydra/hydra.yaml").write_text("hydra: [")
    assert with_config_dir(error, own, Composer()) is error


@pytest.mark.slow
def test_auto_starts_a_run_and_then_resumes_it(toy):
    words = ("resume=auto", "hydra.run.dir=outputs/job", "steps=7")
    assert toy.run(*words) == 0
    assert toy.jobs[-1].resume is None
    folder = toy.folder / "outputs/job"
    assert toy.run(*words) == 0  # killed before its first line: it starts again
    assert toy.jobs[-1].resume is None
    (folder / "metrics.jsonl").write_text("")
    assert toy.run(*words) == 0
    assert (toy.jobs[-1].resume, toy.jobs[-1].steps) == (str(folder), 7)
    assert toy.run("resume=auto", "hydra.run.dir=outputs/job", "steps=9") == 0
    assert toy.jobs[-1].steps == 9


@pytest.mark.slow
def test_auto_keeps_what_a_run_has_recorded_if_its_command_line_names_the_group_again(toy):
    words = ("resume=auto", "hydra.run.dir=outputs/job", "model=plain")
    assert toy.run(*words, "model.rate=0.75") == 0  # as a run records `model.date`
    folder = toy.folder / "outputs/job"
    (folder / "metrics.jsonl").write_text("")
    for _ in range(2):  # the second start reads what the first one has written
        assert toy.run(*words) == 0
        assert (toy.jobs[-1].resume, toy.jobs[-1].model.rate) == (str(folder), 0.75)
    assert toy.run(*words, "model.rate=0.5") == 2


def test_auto_needs_a_folder_that_is_the_same_for_each_start(toy, capsys):
    assert toy.run("resume=auto") == 2
    assert "resume=auto needs the folder of the run: add hydra.run.dir=" in capsys.readouterr().err


@pytest.mark.slow
def test_the_best_checkpoint_is_a_word_beside_resume_only(toy, started, capsys):
    assert toy.run(f"resume={started}", "checkpoint=best") == 0
    assert toy.jobs[-1].checkpoint.restore == "best"
    assert toy.run(f"resume={started}") == 0
    assert toy.jobs[-1].checkpoint.restore == "newest"
    capsys.readouterr()
    assert toy.run("checkpoint.restore=best") == 2
    assert "add resume=FOLDER" in capsys.readouterr().err


@pytest.fixture
def mirrored(url, tmp_path, monkeypatch):
    """An address with the record of a run, and the working directory of another machine."""
    for name, text in (
        (".hydra/overrides.yaml", "[]"),
        (".mirror", "first start"),
        ("metrics.jsonl", '{"step": 0}\n'),
        ("exports/step-1/config.json", "{}"),
        ("checkpoints/5/digests.sha256", "digests"),
        ("checkpoints/5/state", "large"),
        ("checkpoints/6/state", "incomplete"),
    ):
        ObjectStore(url).write(name, text.encode())
    monkeypatch.chdir(tmp_path)
    return url


def names_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


COPIED = {
    *(".hydra/overrides.yaml", ".mirror", "metrics.jsonl", "exports/step-1/config.json"),
    "checkpoints/5/digests.sha256",
}


def test_other_command_lines_stay_as_they_are(url):
    for words in (["steps=2"], ["resume=outputs/run"], ["resume=auto", "hydra.run.dir=a"], []):
        assert with_local_folder(words) == words
    assert with_local_folder([f"checkpoint.mirror={url}"]) == [f"checkpoint.mirror={url}"]


def test_the_run_gets_a_folder_with_all_but_the_files_of_checkpoints(mirrored, tmp_path):
    words = with_local_folder([f"resume={mirrored}", "steps=9"])
    folder = tmp_path / "outputs" / "mirrors" / "memory" / mirrored.partition("://")[2]
    assert words == ["steps=9", f"resume={folder}", f"checkpoint.mirror={mirrored}"]
    assert names_in(folder) == COPIED
    assert list(folder.parent.iterdir()) == [folder]


def test_resume_auto_starts_a_run_that_the_store_lacks_and_resumes_it_later(mirrored, tmp_path):
    folder = tmp_path / "run"
    words = ["resume=auto", f"hydra.run.dir={folder}"]
    for url, exists in ((f"{mirrored}/other", False), (mirrored, True)):
        mirror = f"checkpoint.mirror={url}"
        assert with_local_folder([*words, mirror]) == ["resume=auto", mirror, words[1]]
        assert folder.exists() == exists
    assert names_in(folder) == COPIED


def test_a_folder_of_the_same_start_is_ahead_and_one_of_another_start_is_set_aside(
    mirrored, tmp_path, caplog
):
    folder = tmp_path / "run"
    words = [f"resume={mirrored}", f"hydra.run.dir={folder}"]
    with_local_folder(words)
    (folder / "metrics.jsonl").write_text('{"step": 0}\n{"step": 1}\n')
    with_local_folder(words)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    ObjectStore(mirrored).write(".mirror", b"second start")
    with only_run_in(folder), pytest.raises(InputError, match="Another run is using"):
        with_local_folder(words)
    with_local_folder(words)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
    assert len((tmp_path / "run.1" / "metrics.jsonl").read_text().splitlines()) == 2
    assert f"{folder} is now {folder}.1, because {mirrored} has a later" in caplog.text


def test_what_is_no_run_is_refused(mirrored, tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years of work")
    for words, sentence in (
        ([f"resume={mirrored}/nothing"], "is not the folder of a run: it has no metrics.jsonl"),
        ([f"resume={mirrored}", "hydra.run.dir=thesis"], "has files that are no run"),
        ([f"resume={mirrored}", f"checkpoint.mirror={mirrored}2"], "is not the mirror that"),
    ):
        with pytest.raises(InputError, match=sentence):
            with_local_folder(words)
    assert (tmp_path / "thesis" / "thesis.tex").exists()


@pytest.mark.slow
def test_only_the_command_line_gives_an_address(tmp_path, url, capsys):
    recipe = tmp_path / "conf" / "experiment" / "mine.yaml"
    recipe.parent.mkdir(parents=True)
    recipe.write_text(f"# @package _global_\ncheckpoint:\n  mirror: {url}\n")
    with pytest.raises(InputError, match="is a place that the run writes to"):
        compose(["experiment=mine"], config_dir=str(recipe.parents[1]))
    given = compose(["experiment=mine", f"allow={url}"], config_dir=str(recipe.parents[1]))
    assert given.checkpoint.mirror == url
    for word, sentence in (
        ("checkpoint.mirror=s3://key:secret@bucket/a", "checkpoint.mirror has a user name, a pass"),
        ("hydra.run.dir=s3://bucket/a", "mirrored: write checkpoint.mirror=s3://bucket/a"),
        ("hydra.sweep.dir=s3://bucket/a -m", "mirrored: write checkpoint.mirror=s3://bucket/a"),
    ):
        with pytest.raises(SystemExit):
            main("train", print, argv=word.split())
        error = capsys.readouterr().err
        assert sentence in error
        assert "secret@" not in error
