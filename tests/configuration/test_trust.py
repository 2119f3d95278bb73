"""What only a command line may say. A canary file tells whether foreign code ran."""

import os

import pytest

from rl4p.configuration import trust
from rl4p.errors import InputError
from tests.configuration.hostile import cases, write


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
        "rl4p.runs.run.git_state",
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
