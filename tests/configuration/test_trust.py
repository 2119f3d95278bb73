"""What only a command line may say. A canary file tells whether foreign code ran."""

import os

import pytest
from omegaconf import OmegaConf, open_dict, read_write

from rl4p.base.errors import InputError
from rl4p.configuration import trust
from rl4p.configuration.composition import Composer
from rl4p.configuration.trust import check_hydra
from tests.support.hostile_files import cases, write


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hydra", "word"),
    cases(
        ("{job: {env_set: {PATH: /evil}}}", "hydra.job.env_set.OTHER=1"),
        ("{job: {env_set: {GIT_CONFIG_COUNT: '1'}}}", "hydra.job.env_set={OTHER: 1}"),
        ("{job: {env_set: '${oc.decode:\"{PATH: /evil}\"}'}}", "seed=1"),
        ("{mode: MULTIRUN, sweeper: {params: {+hydra.job.env_set.A: '1'}}}", "seed=1"),
    ),
)
def test_only_the_command_line_changes_the_environment(toy, attack, hydra, word):
    yaml = write(toy.folder / "c", experiment__evil=f"hydra: {hydra}")
    sentence = attack("--config-dir", yaml, "experiment=evil", word)
    assert sentence.startswith("hydra.job.env_set")
    assert "comes from a file" in sentence


@pytest.mark.slow
def test_the_command_line_may_change_the_environment(toy):
    seen = []
    job = lambda config: seen.append(os.environ["A_TEST"])  # noqa: E731
    assert toy.run("+hydra.job.env_set.A_TEST=yes", job=job) == 0
    assert seen == ["yes"]


@pytest.mark.parametrize(
    "key",
    [
        "launcher.setup",
        "launcher.additional_parameters",
        "sweeper.storage",
        "sweeper",
        "sweeper.custom_search_space",
    ],
)
def test_only_the_command_line_gives_what_plugins_run(key):
    node, _, name = key.partition(".")
    tree = {"hydra": {node: {name or "storage": ["touch canary"]}}}
    with pytest.raises(InputError, match="comes from a file, and it can run code"):
        trust.refuse_unsaid(tree, ["hydra.launcher", "hydra.sweeper"], ())
    if name:
        trust.refuse_unsaid(tree, [f"hydra.{key}"], ())


@pytest.mark.parametrize(
    "target",
    cases(
        "rl4p.runs.environment.git_state",
        "rl4p.export.main",
        "rl4p.reward.workers.Workers",
        "rl4p.configuration.targets.instantiate",
        "rl4p.export.export",
    ),
)
def test_only_parts_of_rl4p_are_targets(toy, attack, target):
    yaml = write(toy.folder / "c", experiment__evil=f"rollout: {{inner: {{_target_: {target}}}}}")
    words = ["trusted_targets=[toy,rl4p,subprocess]"]
    sentence = attack("--config-dir", yaml, "experiment=evil", *words)
    assert f"{target} is not trusted: it is not a part of rl4p" in sentence


def test_parts_are_classes():
    assert "rl4p.advantage.grpo.GRPO" in trust.parts()
    assert all(name.rpartition(".")[2][0].isupper() for name in trust.parts())


def test_only_the_command_line_opens_the_sandbox(toy, attack):
    text = "rollout: {inner: {sandbox: '${oc.decode:none}'}}"
    yaml = write(toy.folder / "c", experiment__evil=text)
    sentence = attack("--config-dir", yaml, "experiment=evil")
    assert sentence.startswith("rollout.inner.sandbox=none comes from a file")
    assert toy.run("--config-dir", yaml, "experiment=evil", "rollout.inner.sandbox=none") == 0


def test_a_name_of_the_user_is_compared_by_dotted_parts():
    with pytest.raises(InputError, match="is not trusted"):
        trust.require_trust("rl4pp.Part", ("rl4p",), "rollout._target_")


@pytest.mark.parametrize(
    "hydra",
    cases(
        "{callbacks: {x: {_target_: hostile.call}}}",
        "{callbacks: {x: '${oc.decode:\"{_target_: hostile.call}\"}'}}",
        "{callbacks: {x: '${oc.create:{_target_: hostile.call}}'}}",
        "{callbacks: {x: '${evil}'}}",
        "{callbacks: {x: [{inner: '${evil}'}]}}",
        "{callbacks: '${oc.decode:\"{x: {_target_: hostile.call}}\"}'}",
        "{callbacks: {x: {_target_: '${oc.decode:hostile.call}'}}}",
        "{mode: MULTIRUN, launcher: '${evil}'}",
        "{mode: MULTIRUN, sweeper: {params: {seed: '1,2'}, max_batch_size: '${evil}'}}",
        "{job_logging: {handlers: {file: {(): hostile.call}}}}",
        "{job_logging: {handlers: {file: '${evil}'}}}",
        "{job_logging: {filters: {x: '${oc.decode:\"{(): hostile.call}\"}'}}}",
        "{hydra_logging: {formatters: {simple: {class: hostile.call}}}}",
    ),
)
def test_hydra_builds_nothing_of_others(toy, attack, hydra):
    text = f"hydra: {hydra}\nrollout: {{listed: []}}"
    if "${evil}" in hydra:
        text = text.replace("${evil}", "${rollout.typed}")
        text = text.replace("{listed: []}", "{typed: {_target_: hostile.call}}")
    yaml = write(toy.folder / "c", experiment__evil=text)
    sentence = attack("--config-dir", yaml, "experiment=evil")
    assert sentence.startswith(("hydra.", "experiment=evil is refused"))


@pytest.mark.parametrize(
    ("hydra", "sentence"),
    [
        ("output_subdir: ../../other", "hydra.output_subdir must be the name of a folder"),
        ("job: {name: ../other}", "hydra.job.name must be a plain name"),
    ],
)
def test_hydra_writes_into_the_run_folder_only(toy, attack, hydra, sentence):
    yaml = write(toy.folder / "c", experiment__evil=f"hydra: {{{hydra}}}")
    assert sentence in attack("--config-dir", yaml, "experiment=evil")


def test_a_launcher_gets_no_second_line(toy):
    hydra = Composer(toy.conf).load([]).hydra
    with open_dict(hydra), read_write(hydra):
        hydra.launcher = {"comment": "x\ntouch canary"}
    with pytest.raises(InputError, match=r"hydra\.launcher\.comment must be one line"):
        check_hydra(hydra, ())


@pytest.mark.parametrize(
    "handler",
    cases(
        "filename: OUT/victim",
        "filename: '${hydra.runtime.output_dir}/../victim.log'",
        "filename: '${oc.decode:OUT/victim}'",
        "'.': {baseFilename: OUT/victim}",
        "mode: w",
    ),
)
def test_a_log_is_written_into_the_run_folder_only(toy, attack, handler):
    text = f"hydra: {{job_logging: {{handlers: {{file: {{{handler}}}}}}}}}"
    yaml = write(toy.folder / "c", experiment__evil=text.replace("OUT", str(toy.folder)))
    assert "hydra.job_logging.handlers.file" in attack("--config-dir", yaml, "experiment=evil")
    assert not list(toy.folder.glob("victim*"))


def test_what_hydra_builds_is_resolved_once(toy):
    """The launchers for Slurm name their jobs and their folder by interpolations."""
    hydra = Composer(toy.conf).load([]).hydra
    with open_dict(hydra), read_write(hydra):
        hydra.launcher = {"name": "${hydra.job.config_name}"}
    check_hydra(hydra, ())
    assert OmegaConf.to_container(hydra.launcher, resolve=False) == {"name": "config"}
