"""Tests that a run on one device, on several, or resumed on others gives the same numbers."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import rl4p
from tests.support.runs import assert_trains, lines, params, summary

MODEL = ("model.heads=8", "model.num_kv_heads=4", "model.feed_forward_width=64")
PHASES = ("advantage=gae", "critic=separate", "kl=fixed", "ema.decay=0.5", "prompts_per_step=8")


@pytest.fixture(scope="module")
def train_on(command, on_devices):
    def train(devices: int, *overrides: str, **options):
        process = subprocess.run(
            command(*overrides, **options),
            env=on_devices(devices),
            capture_output=True,
            text=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr[-3000:]
        return process

    return train


def assert_alike(a: Path, b: Path) -> None:
    """Checks that metrics (except times) and parameters agree up to rounding."""
    assert_trains(lines(a))
    for one, other in zip(lines(a), lines(b), strict=True):
        assert one.keys() == other.keys()
        for name in one:
            if not name.startswith("rollout/logprob_gap"):  # this gap is the rounding itself
                np.testing.assert_allclose(
                    one[name], other[name], rtol=1e-3, atol=1e-5, err_msg=name
                )
    ours, theirs = params(a), params(b)
    assert np.linalg.norm(ours - theirs) <= 1e-5 * np.linalg.norm(ours)


@pytest.mark.slow
def test_a_run_goes_from_eight_devices_to_four_and_to_one(train_on, tmp_path):
    shared = ("steps=4", "checkpoint.every=2", *MODEL, *PHASES)
    alone, eight, four = (tmp_path / name for name in ("alone", "eight", "four"))
    train_on(1, *shared, f"hydra.run.dir={alone}")
    train_on(
        8, *shared, "steps=2", "mesh=fsdp", "mesh.fsdp=4", "mesh.tp=2", f"hydra.run.dir={eight}"
    )
    assert (eight / "checkpoints" / "2").is_dir()
    subprocess.run(["cp", "-r", eight, four], check=True)
    train_on(1, f"resume={eight}", "steps=4", "mesh=single", small=())
    train_on(4, f"resume={four}", "steps=4", "mesh=fsdp_tp", small=())
    for folder in (eight, four):
        assert summary(folder)["resumed_from"] == 2
        assert_alike(alone, folder)


def lines_of(folder: Path) -> list[str]:
    return (folder / "samples.jsonl").read_text().splitlines()


@pytest.mark.slow
def test_a_run_that_divides_columns_draws_the_same_tokens(train_on, tmp_path):
    shared = ("steps=3", "samples.every=1", "samples.count=99", *MODEL, *PHASES)
    alone, four = (tmp_path / name for name in ("alone", "four"))
    train_on(1, *shared, f"hydra.run.dir={alone}")
    train_on(4, *shared, "mesh.dp=1", "mesh.fsdp=2", "mesh.cp=2", f"hydra.run.dir={four}")
    assert_alike(alone, four)
    texts = [
        [(each["prompt"], each["response"]) for each in map(json.loads, lines_of(folder))]
        for folder in (alone, four)
    ]
    assert texts[0] == texts[1]
    assert len({response for _, response in texts[0]}) > 10


@pytest.mark.slow
def test_adapters_beside_a_divided_base_are_trained_and_merged(train_on, tmp_path):
    tiny = (
        *("model=tiny", "model.lora.rank=2", "optimizer.learning_rate=0.002", "steps=3"),
        *("prompts_per_step=8", "group_size=4", "evaluation.every=3", "tracker=none"),
        *("data.train_size=40", "data.held_out_size=8"),
    )
    alone, four = (tmp_path / name for name in ("alone", "four"))
    train_on(1, *tiny, f"hydra.run.dir={alone}", small=())
    train_on(4, *tiny, "mesh.shape=[2,2,1]", f"hydra.run.dir={four}", small=())
    assert_alike(alone, four)
    weights = []
    for run in (alone, four):
        command = ["-m", "rl4p.export", f"run={run}", f"out={run}-policy"]
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        weights.append(load_file(f"{run}-policy/model.safetensors"))
    base = load_file(Path(rl4p.__file__).parent / "model" / "tiny" / "model.safetensors")
    for name, whole in base.items():
        np.testing.assert_allclose(weights[0][name], weights[1][name], atol=1e-5)
        assert name.endswith("proj.weight") == bool((weights[0][name] != whole).any())
