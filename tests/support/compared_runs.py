"""Folders of runs to compare."""

import json
from pathlib import Path

import yaml

from rl4p.tools.comparison.statistics import analysed
from rl4p.tools.runs import Run

METRIC = "eval/arithmetic/pass_at_1"


def write_run(
    folder,
    *,
    seed=0,
    last=0.5,
    overrides=(),
    config=None,
    choices=None,
    status="finished",
    steps=4,
    rows=None,
    samples=None,
    devices=1,
    prompts=256,
    kind="training",
):
    """Writes the files of a run whose metric rises from 0 to `last`.

    Args:
      overrides: the command line, as "key=value"; a dotted key is set in the configuration too.
      config: more of the configuration.
      choices: the options of groups, which Hydra records.
      rows: the metrics, instead of the ones described here.
      samples: the lines of samples.jsonl; the default is one for each step.
    """
    (folder / ".hydra").mkdir(parents=True)
    runtime = {"runtime": {"choices": choices or {}}}
    (folder / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump({"hydra": runtime}))
    found = {"seed": seed, "steps": steps, "prompts_per_step": 4, "group_size": 2} | (config or {})
    (folder / "config.yaml").write_text(yaml.safe_dump(found))
    given = [*overrides, f"seed={seed}"]
    (folder / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(given))
    environment = {"kind": kind, "devices": devices, "overrides": given}
    (folder / "environment.json").write_text(json.dumps(environment))
    if rows is None:
        rows = [
            {
                "step": step,
                METRIC: last * step / steps,
                "eval/arithmetic/prompts": prompts,
                **(trained(step, steps) if step else {}),
            }
            for step in range(steps + 1)
        ]
    if samples is None:
        samples = [sample(step, f"{seed}-{step}") for step in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in samples))
    if status is not None:
        done = {"status": status, "step": rows[-1]["step"] if rows else 0}
        (folder / "summary.json").write_text(json.dumps(done))
    return folder


def write_algorithm(sweep, name, values, first=0, **others):
    """Writes the runs of one algorithm, one for each value."""
    target = {"_target_": f"rl4p.advantage.{name}.{name.upper()}", "epsilon": 1e-4}
    return [
        write_run(
            sweep / f"{name}-{seed}",
            seed=seed,
            last=value,
            overrides=[f"advantage={name}"],
            config={"advantage": target},
            choices={"advantage": name, "hydra/launcher": "basic"},
            **others,
        )
        for seed, value in enumerate(values, first)
    ]


def write_sweep(folder):
    """Writes the folder of a sweep: rloo is better than grpo for each of three seeds."""
    write_algorithm(folder, "grpo", [0.70, 0.72, 0.71])
    write_algorithm(folder, "rloo", [0.90, 0.91, 0.92])
    (folder / "multirun.yaml").write_text("hydra: {}\n")
    return folder


def trained(step, steps):
    """Returns the metrics of a training step."""
    return {
        "reward/mean": step / steps,
        "rollout/response_tokens": 10.0 + step,
        "rollout/truncated": 0.25,
        "rollout/logprob_gap_max": 1e-5,
        "rollout/tokens_per_second": 100.0,
        "time/rollout": 2.0,
        "time/step": 3.0,
        "update/entropy": 1.0 / step,
        "update/ess": 0.75,
    }


def sample(step, name, response="5", **others):
    return {
        "step": step, "id": name, "prompt": "2+3=", "response": response, "answer": "5",
        "reward": 1.0,
    } | others  # fmt: skip


SUMS = "eval/sums/pass_at_1"


def run(algorithm, seed, value, **rows):
    return Run(
        name=f"{algorithm}-{seed}",
        seed=seed,
        config={"advantage": algorithm},
        overrides=[f"advantage={algorithm}"],
        rows=[{"step": 0, "eval/sums/prompts": 256.0} | ({SUMS: value} | rows)],
    )


def runs(**algorithms):
    return [
        run(name, seed, value)
        for name, values in algorithms.items()
        for seed, value in enumerate(values)
    ]


def compare(members, left_out=(), metric=None, **options):
    return analysed(members, left_out, Path("out"), metric, **options)
