"""Attacks through the places from which Hydra loads. A canary tells whether foreign code ran."""

import os

import pytest
from hydra.core.object_type import ObjectType

from rl4p.configuration import compose, instantiate
from rl4p.configuration.composition import CONFIG, Composer
from tests.support.hostile_files import cases, recorded, write


@pytest.mark.slow
def test_the_canary_sings(toy, canary):
    """The attacks below do nothing wrong but to lack the trust of the command line."""
    yaml = write(toy.folder / "c", experiment__evil="rollout: {inner: {_target_: hostile.call}}")
    words = ["--config-dir", yaml, "experiment=evil", "trusted_targets=[toy,hostile]"]
    assert toy.run(*words, job=lambda config: instantiate(config.rollout)) == 0
    assert canary.exists()


@pytest.mark.slow
def test_a_file_is_read_anew_once_it_has_changed(toy):
    for size in (2, 3):
        folder = write(toy.folder / "c", experiment__own=f"rollout: {{size: {size}}}")
        config = compose(["experiment=own"], config_dir=folder, conf=toy.conf)
        assert config.rollout.size == size


def test_the_options_of_a_group_are_listed_with_the_folders_that_overrides_add(tmp_path):
    (tmp_path / "advantage").mkdir()
    (tmp_path / "advantage" / "own.yaml").write_text("{}")
    loader, words = Composer().loader, [f"hydra.searchpath=[file://{tmp_path}]"]
    before = loader.get_group_options("advantage")
    assert "grpo" in before
    assert "own" not in before
    assert "own" in loader.get_group_options("advantage", config_name=CONFIG, overrides=words)
    before.append("own")
    assert "own" not in loader.get_group_options("advantage")
    assert "hydra" in loader.get_group_options("", ObjectType.GROUP)


@pytest.mark.slow
def test_a_composition_changes_none_that_follows(toy):
    changes = ["seed=9", "rollout.size=9", "evaluation.every=9"]
    for words, seed in ((["experiment=good"], 7), ([], 0)):
        before = toy.compose(*words)
        assert toy.compose(*words, *changes).evaluation.every == 9
        assert toy.compose(*words) == before
        assert (before.seed, before.rollout.size) == (seed, 1)


def test_a_file_may_name_the_option_of_another_group(toy):
    text = "defaults: [{/rollout@evaluation.rollout: '${experiment}'}]"
    folder = write(toy.folder / "c", experiment__own=text)
    (toy.folder / "c" / "rollout").mkdir()
    (toy.folder / "c" / "rollout" / "own.yaml").write_text("{_target_: toy.Part, size: 5}")
    config = compose(["experiment=own"], config_dir=folder, conf=toy.conf)
    assert config.evaluation.rollout.size == 5


EVIL = "rollout: {inner: {_target_: hostile.call}}\ntrusted_targets: "


@pytest.mark.parametrize("trusts", cases("[toy, hostile]", "hostile", "'${oc.decode:hostile}'"))
def test_a_yaml_file_gives_no_trust(toy, attack, trusts):
    yaml = write(toy.folder / "c", experiment__evil=EVIL + trusts)
    assert "trusted_targets=hostile comes from a file" in attack(
        "--config-dir", yaml, "experiment=evil"
    )


@pytest.mark.slow
def test_a_sweep_in_a_yaml_file_gives_no_trust(toy, attack):
    params = "{trusted_targets: '[hostile]', rollout.inner: '{_target_: hostile.call}'}"
    text = f"hydra: {{mode: MULTIRUN, sweeper: {{params: {params}}}}}"
    yaml = write(toy.folder / "c", experiment__evil=text)
    sentence = attack("--config-dir", yaml, "experiment=evil")
    assert "trusted_targets=hostile comes from a file" in sentence


@pytest.mark.parametrize(
    "trust", cases("trusted_targets=[toy,hostile]", "++trusted_targets=[hostile]")
)
def test_a_resumed_run_gives_no_trust(toy, attack, trust):
    folder = toy.folder / "theirs"
    lines = [f"hydra.searchpath=[file://{folder}/c]", "experiment=evil", trust]
    recorded(toy, *lines, trusted_targets=["toy", "hostile"])
    write(folder / "c", experiment__evil=EVIL + "[toy, hostile]")
    assert "evil" in attack(f"resume={folder}")


@pytest.mark.parametrize(
    "override",
    cases("+rollout.inner={_target_:hostile.call}", "+rollout.inner._target_=hostile.call"),
)
def test_a_resumed_run_names_no_code(toy, attack, override):
    folder = recorded(toy, override)
    assert "hostile.call is not trusted" in attack(f"resume={folder}")


@pytest.mark.slow
def test_overrides_of_hydra_are_not_taken_over(toy, canary):
    lines = ["hydra.job.env_set={A_TEST: '1'}", "hydra.callbacks.x._target_=hostile.call"]
    folder = recorded(toy, *lines, "hydra.searchpath=[pkg://hostile]", "hydra.run.dir=other")
    seen = []
    job = lambda config: seen.append(os.environ.get("A_TEST"))  # noqa: E731
    assert toy.run(f"resume={folder}", job=job) == 0
    assert seen == [None]
    assert not canary.exists()
    assert not (toy.folder / "other").exists()


def test_a_search_path_imports_no_package(attack):
    assert "hydra.searchpath=pkg://hostile is refused" in attack("hydra.searchpath=[pkg://hostile]")


@pytest.mark.parametrize(
    "name", cases("toy.log", "metrics.jsonl", ".hydra/hydra.yaml", "plots/a.png")
)
def test_a_resumed_run_writes_through_no_link(toy, attack, name):
    folder = recorded(toy)
    victim = toy.folder / "victim"
    victim.write_text("untouched")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(victim)
    assert f"{name} is a link to {victim}" in attack(f"resume={folder}")
    assert victim.read_text() == "untouched"
