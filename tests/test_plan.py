"""Tests the entry point of plans: its help and its configuration need no JAX."""

import subprocess
import sys

import pytest

import rl4p.command
import rl4p.plan
import rl4p.tools.planning.report


@pytest.mark.slow
def test_the_help_imports_no_jax():
    script = (
        "import sys; sys.argv = ['plan', '--help']\n"
        "from rl4p.plan import main\n"
        "main(); assert 'jax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "python -m rl4p.plan" in done.stdout


def test_the_job_is_the_plan_of_its_configuration(monkeypatch):
    monkeypatch.setattr(rl4p.tools.planning.report, "plan", lambda config: {"of": config})
    assert rl4p.plan.job("a configuration") == {"of": "a configuration"}


def test_main_is_the_entry_point_of_this_name(monkeypatch):
    """A plan is a single process and joins no others."""
    called = []
    monkeypatch.setattr(
        rl4p.command, "main", lambda *args, **options: called.append((args, options))
    )
    rl4p.plan.main()
    assert called == [(("plan", rl4p.plan.job), {"reads_runs": True})]
