import pytest
from omegaconf import OmegaConf

from rl4p.configuration import compose
from rl4p.configuration.moved import (
    ADDED,
    ADDED_BELOW,
    ADDED_OPTIONS,
    KEYS,
    MOVED,
    moved,
    renewed,
    renewed_override,
)
from rl4p.configuration.targets import locate
from rl4p.errors import InputError


def of_an_older_version(config):
    """Returns the configuration with the old names of `MOVED`, without the keys that were added."""
    text = OmegaConf.to_yaml(config)
    for old, new in MOVED.items():
        text = text.replace(f"_target_: {new}", f"_target_: {old}")
    for old, new in KEYS.items():
        text = text.replace(f"{new}:", f"{old}:")
    tree = {k: x for k, x in OmegaConf.create(text).items() if k not in ADDED}
    for section, added in ADDED_BELOW.items():
        tree[section] = {k: x for k, x in tree[section].items() if k not in added}
    return OmegaConf.create(tree)


@pytest.mark.parametrize("overrides", [[], ["critic=separate", "advantage=gae", "model=scratch"]])
def test_an_older_configuration_becomes_that_of_today(overrides):
    config = compose(overrides)
    older = of_an_older_version(config)
    assert older.mesh._target_ == "rl4p.mesh.Mesh"
    assert "source" not in older
    assert "samples" not in older.evaluation
    assert renewed(older) == renewed(config) == config


@pytest.mark.parametrize(
    ("line", "now"),
    [
        ("critic=apart", "critic=separate"),
        ("model.key_value_heads=2", "model.num_kv_heads=2"),
        ("+teacher.key_value_heads=2", "+teacher.num_kv_heads=2"),
        ("critic=shared", "critic=shared"),
        ("data.path=apart", "data.path=apart"),
        ("~hooks.mine", "~hooks.mine"),
    ],
)
def test_an_older_override_becomes_that_of_today(line, now):
    assert renewed_override(line) == now
    assert renewed_override(now) == now


def test_an_older_key_is_said_by_its_new_name():
    with pytest.raises(InputError, match=r"it is now called model\.num_kv_heads"):
        compose(["model=scratch", "model.key_value_heads=2"])


def test_a_name_of_today_stays():
    assert moved("rl4p.learner.kl.fixed.Fixed") == "rl4p.learner.kl.fixed.Fixed"
    assert moved("mine.kl.fixed.Fixed") == "mine.kl.fixed.Fixed"


def test_a_target_that_has_moved_is_said_by_its_new_name():
    with pytest.raises(InputError, match=r"^kl\._target_=rl4p\.kl\.fixed\.Fixed is now called rl"):
        locate("rl4p.kl.fixed.Fixed", ["rl4p"], "kl._target_")


def test_options_of_today_are_added_to_an_older_configuration():
    words = ["data=jsonl", "data.path=a", "+data@teacher=gsm8k", "teacher.path=b", "update=sft"]
    config = compose([*words, "advantage=constant", "rollout=demonstrations"])
    older = OmegaConf.to_container(config)
    for key in ADDED_OPTIONS["rl4p.data.jsonl.JSONLines"]:
        del older["data"][key], older["teacher"][key]
    older["teacher"]["_target_"] = "rl4p.data.jsonl.JSONLines"
    del older["reward"]["deadline"], older["reward"]["terms"]["correct"]["extract"]
    del older["update"]["pack"]
    assert renewed(OmegaConf.create(older)) == config
    older["teacher"]["task"] = "sums"  # a file that was called otherwise stays one
    assert renewed(OmegaConf.create(older)).teacher._target_ == "rl4p.data.jsonl.JSONLines"


@pytest.mark.parametrize(
    ("node", "renewed_node"),
    [
        (
            {"_target_": "rl4p.update.dppo.DPPO", "anchor": "proximal"},
            {"_target_": "rl4p.update.dppo.DPPO", "old_policy": "proximal"},
        ),
        (
            {"_target_": "rl4p.update.ppo.PPO"},
            {"_target_": "rl4p.update.ppo.PPO", "old_policy": "proximal"},
        ),
        (
            {"_target_": "rl4p.update.dro.DRO", "anchor": "behaviour"},
            {"_target_": "rl4p.update.dro.DRO", "anchor": "behaviour"},
        ),
        (
            {"_target_": "rl4p.rollout.continuous.Continuous"},
            {"_target_": "rl4p.rollout.continuous.Continuous", "annealing": None},
        ),
    ],
)
def test_runs_before_the_old_policy_could_be_chosen_go_on(node, renewed_node):
    found = renewed(OmegaConf.create({"update": node}))
    assert OmegaConf.to_container(found)["update"] == renewed_node
