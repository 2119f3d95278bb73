"""Tests each rule on rows that show its symptom, and on runs that are made to fail for real."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from rl4p.configuration import compose
from rl4p.loop.loop import run_hooks, train
from rl4p.runs.build import build
from rl4p.runs.diagnosis import (
    LAST_RULE,
    RULES,
    WINDOW,
    Diagnosis,
    Finding,
    History,
    diagnose,
    loss_note,
)
from tests.support.failing import SOUND, config_of, late, rows_of


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return config_of()


def names(rows, config) -> list[str]:
    return [finding.name for finding in diagnose(rows, config)]


@pytest.mark.parametrize("steps", [0, 1, WINDOW, 80])
def test_a_sound_run_has_no_findings(config, steps):
    assert names(rows_of(steps), config) == []


SYMPTOMS = {
    "skipped_updates": {"update_skipped": lambda step: float(step == 38)},
    "invalid_grades": {"reward_invalid": 8.0},
    "no_advantage": {"advantage_max": 0.0, "update_grad_norm": 0.0},
    "truncated": {"rollout_truncated": late(0.7, 0.0)},
    "equal_groups": {"advantage_zero_std_groups": 0.97, "reward_mean": 0.02},
    "sampler_gap": {"rollout_logprob_gap_mean": late(0.08, 1e-6)},
    "stale_samples": {"staleness_mean": 1.0},
    "clipped": {"update_clip_high": 0.35},
    "large_steps": {"update_approx_kl": 0.3},
    "far_from_reference": {"update_kl": 0.8},
    "fallen_reward": {"reward_mean": late(0.1, 0.5)},
    "collapsed_entropy": {"update_entropy": late(0.01, 0.4)},
    "no_gradient": {"update_grad_norm": 0.0},
    "flat_reward": {"reward_mean": 0.5},
}


def test_every_rule_has_a_symptom_here():
    assert set(SYMPTOMS) == {rule.__name__ for rule in (*RULES, LAST_RULE)}


def test_the_remedy_for_failing_graders_names_the_rewards_of_tasks(config):
    routed = config | {"steps": 40, "reward": {"tasks": {"sums": {}, "code": {}}}}
    (found,) = diagnose(rows_of(40, **SYMPTOMS["invalid_grades"]), routed)
    keys = "reward.tasks.sums.max_invalid=0.02 reward.tasks.code.max_invalid=0.02, to stop"
    assert found.remedy.startswith(keys)


def test_the_remedy_for_failing_episodes_names_the_limit_of_the_rollout(config):
    rows = rows_of(40, **SYMPTOMS["invalid_grades"], environment_failed=0.25)
    (found,) = diagnose(rows, config | {"steps": 40})
    assert found.remedy == "rollout.max_failed=0.02, to stop the run with the reason"


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", SYMPTOMS)
def test_a_symptom_is_found_alone_and_its_remedy_is_an_override(name, config):
    rows = rows_of(40, **SYMPTOMS[name])
    (found,) = diagnose(rows, config | {"steps": 40})
    assert found.name == name
    assert found.step == 40
    assert found.metric.split(" + ")[0] in rows[-1]
    line = str(found)
    assert "\n" not in line
    assert line.startswith(f"{found.metric} is ")
    assert line.endswith(f" Try {found.remedy}")
    compose([found.remedy.partition(",")[0]] if name != "far_from_reference" else ["kl=fixed"])


@pytest.mark.parametrize("name", sorted(set(SYMPTOMS) - {"no_advantage", "invalid_grades"}))
def test_a_symptom_of_one_step_is_no_finding(name, config):
    """Two rules speak at once: what they report is a fact of one step already."""
    changes = SYMPTOMS[name] | {"update_skipped": 0.0}
    after = {
        key.replace("_", "/", 1): value(40) if callable(value) else value
        for key, value in changes.items()
    }
    rows = rows_of(39)
    assert names([*rows, SOUND | after | {"step": 40}], config | {"steps": 40}) == []


LASTING = ("equal_groups", "sampler_gap", "stale_samples", "clipped", "large_steps")
LASTING += ("far_from_reference",)


@pytest.mark.parametrize("name", [*LASTING, "truncated", "no_gradient"])
def test_a_symptom_needs_a_window_of_steps(name, config):
    changes = {k: v(40) if callable(v) else v for k, v in SYMPTOMS[name].items()}
    assert names(rows_of(WINDOW - 1, **changes), config) == []
    assert names(rows_of(WINDOW, **changes), config) == [name]


@pytest.mark.parametrize("name", ["equal_groups", "collapsed_entropy", "flat_reward", "truncated"])
def test_a_solved_task_looks_like_a_failure_and_is_none(name, config):
    rows = rows_of(40, **SYMPTOMS[name])
    rows.append({"step": 40, "eval/arithmetic/pass_at_1": 0.97})
    assert names(rows, config | {"steps": 40}) == []


def test_equal_samples_are_explained_at_the_first_step():
    config = config_of("rollout.temperature=0")
    rows = rows_of(1, advantage_max=0.0, update_grad_norm=0.0)
    (finding,) = diagnose(rows, config)
    assert "at temperature 0 all samples of a prompt are equal" in finding.meaning
    assert finding.remedy == "rollout.temperature=1"


def test_responses_that_are_all_cut_are_one_finding_with_the_longer_limit():
    """More samples would be cut too."""
    config = config_of("group_size=4", "samples.every=0")
    changes = {"advantage_max": 0.0, "reward_std": 0.0, "rollout_truncated": 1.0}
    for steps in (1, WINDOW, 40):
        (finding,) = diagnose(rows_of(steps, update_grad_norm=0.0, **changes), config)
        assert finding.name == "no_advantage"
        assert finding.remedy == f"max_response_tokens={2 * config['max_response_tokens']}"


@pytest.mark.parametrize(
    ("every", "steps", "named"), [(0, 40, False), (10, 9, False), (10, 10, True)]
)
def test_samples_are_named_once_they_are_recorded(every, steps, named):
    config = config_of(f"samples.every={every}")
    rows = rows_of(steps, advantage_max=0.0, reward_std=0.0, update_grad_norm=0.0)
    (finding,) = diagnose(rows, config)
    assert ("samples.jsonl" in finding.meaning) == named


@pytest.mark.parametrize(
    ("overrides", "changes"),
    [
        ("advantage=reinforce", {"advantage_zero_std_groups": 1.0}),  # a baseline over the batch
        ("update=gspo", {"update_clip_high": 0.6}),  # clips of sequences are narrow by design
        ("experiment=arithmetic_sft", {"reward_mean": 1.5, "update_entropy": late(0.01, 0.4)}),
        ("experiment=arithmetic_sft", {"advantage_zero_std_groups": 1.0}),
    ],
)
def test_what_is_by_design_is_no_finding(overrides, changes):
    assert names(rows_of(60, **changes), config_of(overrides)) == []


@pytest.mark.slow
def test_stale_samples_differ_and_a_correction_is_for_them():
    rows = rows_of(20, staleness_mean=1.5)
    (found,) = diagnose(rows, config_of())
    assert found.remedy == "correction=token_truncate, or update.old_policy=behaviour"
    assert "1.5 steps old on average" in found.meaning
    assert names(rows, config_of("correction=token_truncate")) == []
    assert names(rows, config_of("update.old_policy=behaviour")) == []
    assert names(rows, config_of("update=dppo")) == []


def test_a_flat_reward_needs_patience_in_the_middle_of_a_run(config):
    rows = rows_of(120, reward_mean=0.5)
    assert names(rows[:40], config | {"steps": 150}) == []
    assert names(rows[:41], config | {"steps": 40}) == ["flat_reward"]
    assert names(rows, config | {"steps": 150}) == ["flat_reward"]
    assert names(rows, config | {"steps": 1000}) == []


def test_a_cause_is_told_without_the_flat_reward_that_follows_from_it(config):
    rows = rows_of(60, reward_mean=0.5, rollout_truncated=0.9)
    assert names(rows, config) == ["truncated"]
    other = config | {"advantage": {"_target_": "absent.Class"}}  # whose properties are unknown
    assert names(rows_of(20, advantage_zero_std_groups=1.0), other) == []


@pytest.mark.parametrize(
    "equal",
    [{"advantage_max": 0.0, "reward_std": 0.0}, {"advantage_zero_std_groups": 0.97}],
)
def test_cut_responses_need_more_tokens_and_not_more_samples(config, equal):
    rows = rows_of(20, rollout_truncated=1.0, reward_mean=0.0, **equal)
    remedies = {each.remedy for each in diagnose(rows, config)}
    assert remedies == {f"max_response_tokens={2 * config['max_response_tokens']}"}


# The note on the loss.


def test_a_loss_near_0_is_explained_if_the_run_is_on_policy(config):
    note = loss_note(History(rows_of(5), config))
    assert note is not None
    assert "no failure" in note
    assert loss_note(History(rows_of(5, update_loss=0.5), config)) is None
    assert loss_note(History(rows_of(5), config_of("update.epochs=2"))) is None
    assert loss_note(History(rows_of(5, update_grad_norm=0.0), config)) is None
    assert loss_note(History([], config)) is None


# Runs made to fail for real.

QUICK = ("tracker=none", "data.held_out_size=32", "evaluation.every=10", "samples.every=0")


def run(*overrides: str) -> list[str]:
    """Trains, and returns the names of the findings at the end."""
    config = compose([*QUICK, *overrides])
    experiment = build(config)
    hook = Diagnosis(config=experiment.config)
    hook.rows = [experiment.evaluation.evaluate(experiment.state) | {"step": 0}]
    for info in train(experiment.loop, experiment.state):
        run_hooks([experiment.evaluation, hook], info, last=info.step == config.steps)
    last = hook.rows[-1]["step"]
    return [found["name"] for found in hook.end() if found["step"] == last]


SMALL = ("steps=2", "prompts_per_step=4", "group_size=4")
GRADERS = ("trusted_targets=[tests]",)


@pytest.mark.mixed_dtypes
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (("max_response_tokens=3", "reward.terms.format.weight=0"), ["no_advantage", "truncated"]),
        (
            (
                "~reward.terms.format",
                "~reward.terms.correct",
                "+reward.terms.x._target_=tests.support.failing.Always",
                "evaluation.term=x",
                *GRADERS,
            ),
            ["no_advantage"],
        ),
        (("+reward.terms.x._target_=tests.support.failing.Fails", *GRADERS), ["invalid_grades"]),
        (("rollout.temperature=0",), ["no_advantage"]),
    ],
    ids=["truncated", "constant-reward", "failing-grader", "greedy"],
)
@pytest.mark.slow
def test_a_run_made_to_fail_says_why(overrides, expected):
    assert run(*SMALL, *overrides) == expected


@pytest.mark.mixed_dtypes
@pytest.mark.slow
def test_a_hundred_times_the_learning_rate_is_named_and_the_default_has_no_findings():
    sizes = ("steps=20", "prompts_per_step=8")
    assert run(*sizes, "optimizer.learning_rate=5e-3")[-1] == "fallen_reward"
    assert run(*sizes) == []


def test_a_finding_is_one_line():
    finding = Finding(
        name="x", step=3, metric="a/b", value=0.12345, meaning="It is bad.", remedy="c.d=1"
    )
    assert str(finding) == "a/b is 0.123 at step 3: It is bad. Try c.d=1"


def test_a_run_without_a_step_has_nothing_to_find(config):
    assert diagnose([], config) == diagnose(rows_of(0), config) == []
    assert Diagnosis(config=config).end() == []


def hook_on(config, rows, caplog):
    """Returns the hook after these rows, and what it logged before its end."""
    hook = Diagnosis(config=config)
    hook.rows = [row for row in rows if row["step"] == 0]
    with caplog.at_level(logging.WARNING):
        for row in rows:
            if row["step"] > 0:
                hook(SimpleNamespace(step=row["step"], metrics=row))  # type: ignore[arg-type]
    return hook, [record.getMessage() for record in caplog.records]


def test_a_finding_is_told_once_and_again_at_the_end(config, caplog):
    hook, said = hook_on(config, rows_of(60, rollout_truncated=0.9), caplog)
    assert len(said) == 1
    assert "at step 10:" in said[0]
    caplog.clear()
    (found,) = hook.end()
    (at_the_end,) = caplog.records
    assert "at step 60:" in at_the_end.getMessage()
    assert (found["name"], found["first_step"], found["step"]) == ("truncated", 10, 60)
    assert found["remedy"] == "max_response_tokens=80"


def test_a_finding_that_passed_is_kept_for_the_summary_only(config, caplog):
    truncated = {"rollout_truncated": lambda step: 0.9 if step < 20 else 0.0}
    hook, said = hook_on(config, rows_of(60, **truncated), caplog)
    caplog.clear()
    (found,) = hook.end()
    assert len(said) == 1
    assert not caplog.records
    assert (found["first_step"], found["step"]) == (10, 20)


def test_the_last_step_is_told_once(config, caplog):
    hook, said = hook_on(config | {"steps": 1}, rows_of(1, advantage_max=0.0), caplog)
    assert said == []
    hook.end()
    assert len(caplog.records) == 1


def test_only_the_first_process_logs(config, caplog):
    hook = Diagnosis(config=config, quiet=True)
    hook.rows = rows_of(60, rollout_truncated=0.9)
    assert len(hook.end()) == 1
    assert not caplog.records
