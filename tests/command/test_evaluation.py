"""Tests the configuration of an evaluation: a run's own, or composed, and what is refused."""

from functools import cache

import pytest
from omegaconf import OmegaConf

from rl4p.base.errors import InputError
from rl4p.command.evaluation import OF_RUN, EvaluationRequest, read
from rl4p.configuration import compose

TRAINED = (
    *("advantage=rloo", "data.digits=2", "rollout=naive_sampler", "rollout.top_k=9", "steps=3"),
    *("seed=4", "prompts_per_step=2", "max_response_tokens=33", "evaluation.every=1"),
)


@cache
def composed(*lines):
    return compose(lines)


@pytest.fixture
def run(tmp_path):
    """Returns a function that writes what Hydra writes into the folder of a run."""

    def write(*lines):
        folder = tmp_path / "run"
        (folder / ".hydra").mkdir(parents=True)
        OmegaConf.save(composed(*lines), folder / ".hydra" / "config.yaml")
        OmegaConf.save(OmegaConf.create(list(lines)), folder / ".hydra" / "overrides.yaml")
        return folder

    return write


def refusal(*words):
    with pytest.raises(InputError) as refused:
        read([*words, "out=x"] if not any(word.startswith("out=") for word in words) else words)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_run_is_evaluated_as_it_was_configured(run, tmp_path):
    folder = run(*TRAINED)
    request, config = read([f"run={folder}", "step=2", "average=true", f"out={tmp_path}/a b"])
    assert request == EvaluationRequest(out=tmp_path / "a b", run=folder, step=2, average=True)
    then = composed(*TRAINED)
    for key in OF_RUN:
        assert config[key] == then[key], key
    assert OmegaConf.is_struct(config)
    assert "hydra" not in config


@pytest.mark.slow
def test_a_part_may_be_changed_and_the_others_stay(run):
    folder = run(*TRAINED)
    words = ["rollout.temperature=0.5", "evaluation.samples=4", "max_response_tokens=21"]
    _, config = read([f"run={folder}", "out=x", *words])
    assert (config.rollout.temperature, config.rollout.top_k) == (0.5, 9)
    assert config.rollout.max_response_tokens == 21
    assert (config.evaluation.samples, config.evaluation.every) == (4, 1)
    assert config.data.digits == 2
    _, config = read([f"run={folder}", "out=x", "rollout=continuous", "data=jsonl", "data.path=y"])
    assert (config.rollout.slots, config.rollout.top_k) == (None, 0)
    assert (config.data.path, config.max_response_tokens) == ("y", 33)
    words = ["+data@evaluation.tasks.long=arithmetic", "data.held_out_size=7"]
    _, config = read([f"run={folder}", "out=x", *words])
    assert (config.data.digits, config.data.held_out_size) == (2, 7)
    _, config = read([f"run={folder}", "out=x", "~reward.terms.format"])
    assert list(config.reward.terms) == ["correct"]


@pytest.mark.slow
def test_a_part_keeps_what_only_the_folder_knows(run):
    """The defaults of the package may have changed since the run."""
    folder = run(*TRAINED)
    path = folder / ".hydra" / "config.yaml"
    saved = OmegaConf.load(path)
    saved.reward.terms.format.weight = 0.25
    OmegaConf.save(saved, path)
    _, config = read([f"run={folder}", "out=x", "data.digits=3"])
    assert config.reward.terms.format.weight == 0.25
    said = refusal(f"run={folder}", "reward.max_invalid=1.0")
    assert said.startswith("reward cannot be changed, because its defaults are others than when")
    assert "reward.terms.format.weight was 0.25 and is 0.5" in said


@pytest.mark.slow
def test_a_run_of_several_processes_is_evaluated_by_one(run):
    words = ("mesh.processes=2", "mesh.process=0", "mesh.coordinator=a:2000", "mesh.tp=1")
    folder = run(*TRAINED, *words)
    for more in ((), ("mesh.dp=1",)):
        _, config = read([f"run={folder}", "out=x", *more])
        assert {config.mesh[key] for key in ("processes", "process", "coordinator")} == {None}
        assert config.mesh.dp == (1 if more else composed(*TRAINED).mesh.dp)


def test_what_trained_the_run_is_not_needed(run):
    """An advantage of the user's own, which is not trusted here, does not act."""
    folder = run(*TRAINED)
    path = folder / ".hydra" / "config.yaml"
    saved = OmegaConf.load(path)
    saved.advantage = {"_target_": "mine.Advantage"}
    OmegaConf.save(saved, path)
    assert read([f"run={folder}", "out=x"])[1].advantage._target_ != "mine.Advantage"


def test_a_model_is_evaluated_with_a_composed_configuration():
    words = ["model=pretrained", "model.path=y", "suite=sums", "seed=3"]
    request, config = read([*words, "out=~/x"])
    assert request.run is None
    assert request.out.is_absolute()
    assert (config.model.path, config.seed) == ("y", 3)
    assert list(config.evaluation.tasks) == ["two_digits", "three_digits", "four_digits"]
    assert config.evaluation.tasks.four_digits.digits == 4
    assert config.evaluation.held_out is False


@pytest.mark.slow
def test_a_suite_is_one_file(run, tmp_path):
    folder = tmp_path / "conf" / "suite"
    folder.mkdir(parents=True)
    (folder / "mine.yaml").write_text(
        "# @package evaluation\n"
        "defaults: [{/data@tasks.long: arithmetic}, _self_]\n"
        "samples: 2\n"
        "tasks: {long: {digits: 5}}\n"
    )
    for words in ([], [f"run={run(*TRAINED)}"]):
        _, config = read([*words, "suite=mine", "out=x", f"--config-dir={tmp_path / 'conf'}"])
        assert config.evaluation.tasks.long.digits == 5
        assert config.evaluation.samples == 2
        assert config.evaluation.held_out is True


def test_a_file_that_is_only_evaluated_needs_no_other():
    _, config = read(["data=jsonl", "data.held_out_path=test.jsonl", "out=x"])
    assert config.data.path == "test.jsonl"
    task = ["+data@evaluation.tasks.t=jsonl", "evaluation.tasks.t.held_out_path=test.jsonl"]
    assert read([*task, "out=x"])[1].evaluation.tasks.t.path == "test.jsonl"
    assert "data.path has no default" in refusal("data=jsonl")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("out=", "out= has no value."),
        ("run=", "run= has no value."),
        ("step=3", "step, checkpoint and average select parameters of a run: add run=FOLDER."),
        ("average=true", "step, checkpoint and average select parameters of a run"),
        ("run=RUN step=two", "step must be a valid integer, not 'two'."),
        ("run=RUN average=yes", "average must be a valid boolean, not 'yes'"),
        ("run=/nowhere", "run=/nowhere is not the folder of a run"),
        ("optimizer.learning_rate=1.0", "has no effect on an evaluation: leave it out (an eval"),
        ("run=RUN advantage=grpo", "advantage=grpo has no effect on an evaluation: leave it out"),
        ("run=RUN model=tiny", "the run has its own (only model.dtype and model.chat_"),
        ("run=RUN seed=3", "seed=3 has no effect on an evaluation: set evaluation.seed."),
        ("group_size=3", "group_size=3 has no effect on an evaluation: set evaluation.samples."),
        ("prompts_per_step=3", "set evaluation.rows."),
        ("resume=x", "resume is not a word of rl4p.evaluate: write run=x"),
        ("steps=3", "steps is not a word of rl4p.evaluate: write step=3"),
        ("+model@teacher=tiny", "+model@teacher=tiny has no effect"),
        ("hydra.run.dir=x", "hydra.run.dir=x has no effect"),
        ("evaluation.every=3", "evaluation.every=3 has no effect"),
        ("tracker.register=mine", "tracker.register=mine has no effect"),
        ("debug.profile=true", "debug.profile=true has no effect"),
        ("data.digits=2,3", "has several values, but one command evaluates one policy."),
        ("data.digitss=2", "data.digitss is not an option of data=arithmetic; did you mean"),
        ("suite=summs", "suite=summs does not exist; did you mean suite=sums?"),
        ("evaluation.samples=-1", "evaluation.samples must be at least 0"),
        ("evaluation.samples=4 evaluation.pass_at_k=[1]", "evaluation.pass_at_k[0] must be at le"),
        ("rollout.temperature=0.5", "no effect on greedy responses: set evaluation.samples=N"),
        ("suite=sums data.digits=2", "no effect, because evaluation.held_out=false"),
        ("+rollout@evaluation.rollout=continuous rollout.top_k=3", "set evaluation.rollout.top_k"),
        ("+evaluation.tasks.a=3", "evaluation.tasks.a has no _target_: add one"),
        ("outt=x", "outt=x has no effect on an evaluation"),
    ],
)
def test_what_is_wrong_is_named(run, words, sentence):
    folder = run(*TRAINED) if "RUN" in words else None
    assert sentence in refusal(*words.replace("RUN", str(folder)).split())


def test_an_export_is_given_by_the_command_line(run, tmp_path):
    (tmp_path / "policy").mkdir()
    (tmp_path / "policy" / "config.json").write_text("{}")
    folder = run(*TRAINED)
    request, config = read([f"run={folder}", f"export={tmp_path / 'policy'}", "out=x"])
    assert config.model.path == str(tmp_path / "policy")
    assert config.rollout.top_k == 9
    assert request.run is None
