"""Tests that runs with each source and each collector resume as if they had never stopped."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support.runs import assert_gone_on, assert_trains, kill, lines, resume

pytestmark = pytest.mark.slow

# 40 prompts and 4 in a step, so that runs have two epochs.
STEPS = ("steps=14", "checkpoint.every=3", "samples.every=1", "samples.count=99")
STEPS += ("optimizer.learning_rate=0.001",)  # so that rewards still differ in the last steps
TERM = ("source.term=capital",)
REPLAY = ("source=replay", "source.least=4", "source.share=0.5", "source.exploit=0.5")
KINDS = {
    "replay": REPLAY,
    "easy_pool": ("source=easy_pool", "source.probability=[[0,0.8],[14,0.2]]"),
    "curriculum": ("source=curriculum", "source.by=id", *TERM),
    "mixture": ("source=mixture", "+source.weights.arithmetic=[[0,1.0]]"),
    "replayed curriculum": (
        *REPLAY,
        "source@source.source=curriculum",
        "source.source.by=id",
        "source.source.term=capital",
    ),
    "dynamic_sampling": (
        "collector=dynamic_sampling",
        "collector.rounds=2",
        "collector.over_sampling=1.5",
        "+cache@collector.cache=success_cache",
        "collector.cache.term=capital",
        *REPLAY,
    ),
    # Larger groups, so that rewards differ in all steps.
    "lagged": ("collector=lagged", "collector.lag=2", "group_size=4"),
    "annealing": (
        "+annealing@rollout.annealing=linear",
        "rollout.annealing.end=0.7",
        "rollout.annealing.steps=4",
        "rollout.annealing.period=6",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_goes_on_bit_for_bit(kind, command, train, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    options = (*STEPS, *KINDS[kind])
    if kind == "easy_pool":
        sum_ = some_prompt(train, tmp_path)
        options = (*options, f"source.easy={{id:[arithmetic/{sum_}]}}")
    done = train(*options, f"hydra.run.dir={whole}")
    assert done.returncode == 0, done.stderr
    assert_trains(lines(whole))
    kill(command, folder, options)
    resume(train, folder)
    assert_gone_on(folder, whole)


def some_prompt(train, tmp_path) -> str:
    """Returns the sum of a prompt of the training data."""
    folder = tmp_path / "prompts"
    assert train("steps=1", "samples.every=1", f"hydra.run.dir={folder}").returncode == 0
    return asked(folder)[1][0].removeprefix("arithmetic/")


def asked(folder: Path) -> dict[int, list[str]]:
    """Returns the ids of the groups of each step, in their order."""
    found: dict[int, list[str]] = {}
    for line in (folder / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        if sample["sample"] == 0:
            found.setdefault(sample["step"], []).append(sample["id"])
    return found


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("collector.ahead=2", "collector.on_new_weights=continue"),
        ("collector.over_sampling=1.5", "+filter@collector.filters.deviation=deviation"),
    ],
    ids=["finish", "continue", "over-sampling"],
)
def test_a_killed_asynchronous_run_asks_each_prompt_once(options, command, train, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    # Chance decides which weights draw a token: with four samples, no step has equal rewards only.
    options = ("collector=asynchronous", "group_size=4", *STEPS, *options)
    kill(command, folder, options)
    resume(train, folder)
    rows = [row for row in lines(folder) if row["step"] > 0]
    assert [row["step"] for row in rows] == list(range(1, 15))
    assert all(row["update/grad_norm"] > 0 for row in rows)
    prompts = [id for step in range(1, 15) for id in asked(folder)[step]]
    if any("filter" in option for option in options):
        # Which groups are kept depends on when they are sampled.
        assert max(Counter(prompts[:24]).values()) == 1
        return
    assert train(*options, f"hydra.run.dir={whole}").returncode == 0
    assert asked(folder) == asked(whole)
    assert len(set(prompts[:40])) == 40  # an epoch: no prompt is lost, and none comes twice
    assert max(row["staleness/max"] for row in rows) > 0


def test_without_a_step_ahead_a_run_is_synchronous_bit_for_bit(train, tmp_path):
    whole, folder = tmp_path / "whole", tmp_path / "run"
    assert train("steps=6", f"hydra.run.dir={whole}").returncode == 0
    options = ("steps=6", "collector=asynchronous", "collector.ahead=0", f"hydra.run.dir={folder}")
    assert train(*options).returncode == 0
    ours = [
        {name: x for name, x in row.items() if not name.startswith(("collector/", "staleness/sh"))}
        for row in lines(folder)
    ]
    assert ours == lines(whole)
    assert_trains(ours)
    own, other = (json.loads((path / "summary.json").read_text()) for path in (folder, whole))
    assert own["params_sha256"] == other["params_sha256"]
    assert (folder / "plots" / "collector.png").read_bytes().startswith(b"\x89PNG")
