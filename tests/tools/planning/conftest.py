"""Plans of a small policy on eight virtual devices, in separate processes."""

import json
import subprocess
import sys

import pytest

from tests.support.plans import PROGRAMS, SMALL


@pytest.fixture(scope="session")
def plan(on_devices):
    """Returns a function that runs the entry point."""

    def run(*overrides, small=SMALL):
        return subprocess.run(
            [sys.executable, "-m", "rl4p.plan", *small, *overrides],
            env=on_devices(8),
            capture_output=True,
            text=True,
            check=False,
        )

    return run


@pytest.fixture(scope="session")
def on_eight(on_devices):
    """Returns a function that runs a script on eight devices and reads the JSON that it prints."""

    def run(script, *arguments):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            env=on_devices(8),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="session")
def small(on_eight):
    """Returns the output of `PROGRAMS` for the small run."""
    return on_eight(PROGRAMS, *SMALL)
