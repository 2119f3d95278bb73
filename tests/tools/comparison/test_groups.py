"""Tests that runs are grouped by what differs, and that groups are named by it."""

import dataclasses

import pytest

from rl4p.tools.comparison.groups import ABSENT, grouped
from rl4p.tools.runs import Run

GRPO = {"_target_": "rl4p.advantage.grpo.GRPO", "epsilon": 1e-4, "clip": None}
RLOO = {"_target_": "rl4p.advantage.rloo.RLOO", "epsilon": 1e-6}


def run(seed=0, overrides=(), choices=None, name=None, **config):
    return Run(
        name=name or f"run-{seed}",
        seed=seed,
        config={"seed": seed} | config,
        choices=choices or {},
        overrides=[*overrides, f"seed={seed}"],
        rows=[{"step": 0}],
    )


def names_of(*runs):
    return [group.name for group in grouped(runs)[0]]


def test_seeds_of_one_configuration_are_one_group():
    (group,), left_out = grouped([run(2), run(0), run(1)])
    assert [each.seed for each in group.runs] == [0, 1, 2]
    assert group.overrides == ()
    assert group.settings == {}
    assert not left_out


def test_a_key_that_differs_names_the_groups():
    assert names_of(run(group_size=8), run(group_size=16)) == ["group_size=8", "group_size=16"]
    assert names_of(run(a={"b": True}), run(a={"b": None})) == ["a.b=true", "a.b=null"]
    assert names_of(run(a=[1, 2]), run(a=[1])) == ["a=[1,2]", "a=[1]"]


def test_an_option_names_a_group_whose_keys_all_differ():
    a = run(choices={"advantage": "grpo"}, advantage=GRPO)
    b = run(choices={"advantage": "rloo"}, advantage=RLOO)
    groups, _ = grouped([a, b])
    assert [group.name for group in groups] == ["advantage=grpo", "advantage=rloo"]
    assert [group.label for group in groups] == ["grpo", "rloo"]
    assert groups[0].settings["advantage.epsilon"] == "0.0001"
    assert groups[0].settings["advantage.clip"] == "null"
    assert groups[1].settings["advantage.clip"] == ABSENT
    # Without recorded options the targets name the groups.
    assert names_of(run(advantage=GRPO), run(advantage=RLOO)) == [
        "advantage=grpo",
        "advantage=rloo",
    ]


def test_a_key_that_the_option_does_not_explain_is_named_too():
    wide = GRPO | {"epsilon": 0.1}
    assert names_of(run(advantage=GRPO), run(advantage=wide), run(advantage=RLOO)) == [
        "advantage=grpo advantage.epsilon=0.0001",
        "advantage=grpo advantage.epsilon=0.1",
        "advantage=rloo advantage.epsilon=1e-06",
    ]


def test_what_the_user_wrote_explains_what_follows_from_it():
    """A recipe changes many keys, and an interpolated key follows another."""
    a = run(overrides=["experiment=a"], choices={"experiment": "a"}, x=1, y={"z": 1})
    b = run(overrides=["experiment=b"], choices={"experiment": "b"}, x=2, y={"z": 2})
    assert names_of(a, b) == ["experiment=a", "experiment=b"]
    a = run(overrides=["steps=40"], optimizer={"decay_steps": 40}, steps=40)
    b = run(overrides=["steps=80"], optimizer={"decay_steps": 80}, steps=80)
    assert names_of(a, b) == ["steps=40", "steps=80"]


def test_two_settings_that_vary_independently_are_both_named():
    runs = [run(overrides=[f"+a={a}", f"b.c={b}"], a=a, b={"c": b}) for a in (1, 2) for b in (3, 4)]
    assert names_of(*runs) == ["a=1 b.c=3", "a=1 b.c=4", "a=2 b.c=3", "a=2 b.c=4"]


@pytest.mark.parametrize(
    "others",
    [
        {"tracker": {"uri": "b"}},
        {"resume": "runs/1"},
        {"trusted_targets": ["mine"]},
        {"checkpoint": {"every": 0}},
        {"samples": {"every": 0}},
        {"mesh": {"processes": 2, "process": 1, "coordinator": "host:1"}},
        {"debug": {"profile": True}},
    ],
)
def test_settings_of_place_and_time_do_not_divide_a_group(others):
    mesh = {"mesh": {"processes": None, "process": None, "coordinator": None}}
    launchers = ({"hydra/launcher": "basic"}, {"hydra/launcher": "joblib"})
    a, b = (run(0, choices=launchers[0], **mesh), run(1, choices=launchers[1], **(mesh | others)))
    assert len(names_of(a, b)) == 1


def test_the_option_of_a_second_package_names_it():
    a, b = (run(choices={"model@teacher": name}, teacher={"path": name}) for name in "ab")
    assert names_of(a, b) == ["teacher=a", "teacher=b"]


def test_a_repeated_run_replaces_the_earlier_one_and_is_named():
    first, second = run(0, name="first"), run(0, name="second")
    (group,), (left_out,) = grouped([first, run(1), second])
    assert [each.name for each in group.runs] == ["second", "run-1"]
    assert left_out.name == "first"
    assert "of second" in left_out.reason


def test_a_run_whose_learning_rate_was_changed_is_another_group():
    row = {"step": 5, "key": "optimizer.learning_rate", "before": 0.1, "after": 0.2}
    changes = [{"step": 5, "key": "steps", "before": 5, "after": 9}]
    same = dataclasses.replace(run(1), changes=changes)
    other = dataclasses.replace(run(2), changes=[*changes, row])
    assert names_of(run(0), same, other) == [
        "the same configuration",
        "changed=optimizer.learning_rate from 0.1 to 0.2 at step 5",
    ]
