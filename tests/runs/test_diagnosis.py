"""Tests the hook that tells what the rules of `symptoms.py` find."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from rl4p.runs.diagnosis import Diagnosis, Finding, diagnose
from tests.support.failing import config_of, rows_of


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return config_of()


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
    hook.begin([row for row in rows if row["step"] == 0])
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
    hook.begin(rows_of(60, rollout_truncated=0.9))
    assert len(hook.end()) == 1
    assert not caplog.records
