"""Plans of a small policy on eight virtual devices, in processes of their own."""

import json
import subprocess
import sys

import pytest

SMALL = (
    "model=scratch",
    "model.width=64",
    "model.layers=4",
    "model.heads=4",
    "model.key_value_heads=2",
    "model.feed_forward_width=192",
    "mesh=fsdp_tp",
    "mesh.tp=2",
    "prompts_per_step=8",
    "group_size=4",
    "max_prompt_tokens=16",
    "max_response_tokens=16",
    "update.tokens_per_microbatch=64",
    "tracker=none",
)


@pytest.fixture(scope="session")
def plan(on_devices):
    """Runs the entry point."""

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
    """What a script prints, as JSON; its arguments are those of a small run."""

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
