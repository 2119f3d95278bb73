import math

import pytest

from rl4p.runs.diagnosis import NOISE, WINDOW, History, mean
from tests.support.failing import config_of, late, rows_of


def history(steps, *overrides, **changes):
    return History(rows_of(steps, **changes), config_of(*overrides))


@pytest.mark.slow
def test_only_steps_that_trained_count():
    assert [row["step"] for row in history(3).steps] == [1, 2, 3]
    assert history(3).values("update/loss") == [1e-9] * 3
    assert history(3).values("absent") == []


@pytest.mark.slow
def test_early_and_late_are_medians_of_a_window():
    found = history(30, reward_std=lambda step: float(step))
    assert found.early("reward/std") == pytest.approx((WINDOW + 1) / 2)
    assert found.late("reward/std") == pytest.approx(30 - (WINDOW - 1) / 2)
    spike = history(30, reward_std=lambda step: 100.0 if step == 30 else 1.0)
    assert spike.late("reward/std") == 1.0
    assert math.isnan(found.late("absent"))
    assert math.isnan(mean([]))
    assert not history(WINDOW - 1).lasts
    assert history(WINDOW).lasts


def test_the_last_evaluation_decides_whether_a_task_is_solved():
    rows = rows_of(2)
    assert not History(rows, {}).solved
    rows.append({"step": 2, "eval/a/pass_at_1": 0.95, "eval/b/pass_at_1": 0.5})
    assert not History(rows, {}).solved
    rows.append({"step": 3, "eval/a/pass_at_1": 0.95, "eval/b/pass_at_1": 0.95})
    rows.append({"step": 4, "reward/mean": 0.0})
    assert History(rows, {}).solved
    assert not History([], {}).solved


def test_the_change_of_the_reward_is_in_standard_errors_of_its_prompts():
    """The error is sqrt((0.4^2 + 0.4^2) / (10 x 32 prompts)) = 0.0316."""
    found = history(30, reward_mean=late(0.42, 0.5))
    assert found.change == pytest.approx(-0.08 / 0.0316, rel=1e-2)
    assert abs(found.change) < NOISE  # of 2,560 independent samples it would be 7 errors
    assert history(30, "group_size=2", reward_mean=late(0.42, 0.5)).change == found.change


def test_without_a_deviation_any_change_is_certain():
    constant = {"reward_std": 0.0}
    assert history(30, reward_mean=late(0.4, 0.5), **constant).change == -math.inf
    assert history(30, reward_mean=0.5, **constant).change == 0.0


def test_options_are_found_by_their_dotted_key():
    found = history(1)
    assert found.option("update.clip_low") == 0.2
    assert found.option("update.clip_low.x", 7) == 7
    assert found.option("absent.key") is None
    assert found.chooses_none("correction")
    assert not history(1, "correction=token_mask").chooses_none("correction")


@pytest.mark.parametrize(
    ("overrides", "learns", "compares"),
    [
        ((), True, True),
        (("advantage=reinforce",), True, False),
        (("experiment=arithmetic_sft",), False, False),
        (("experiment=arithmetic_distill", "teacher.path=x"), False, False),
        (("experiment=arithmetic_dpo",), True, True),
    ],
)
def test_phases_declare_what_they_depend_on(overrides, learns, compares):
    found = history(1, *overrides)
    assert found.learns_from_reward == learns
    assert found.declares("advantage", "compares_group", False) == compares


def test_a_class_that_this_machine_lacks_has_the_default():
    found = History([], config_of() | {"advantage": {"_target_": "absent.Class"}})
    assert found.declares("advantage", "compares_group", True)
    assert not found.declares("advantage", "compares_group", False)
