"""Folders of runs to compare."""

import json
from dataclasses import replace
from pathlib import Path

import yaml

from rl4p.tools.comparison.statistics import analysed
from rl4p.tools.runs import Questions, Run

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
    if kind == "evaluation":
        (folder / "evaluation.json").write_text("{}")
    elif status is not None:
        done = {"status": status, "step": rows[-1]["step"] if rows else 0}
        (folder / "summary.json").write_text(json.dumps(done))
    return folder


def write_evaluation(folder, right, *, run=None, step=4, metric=METRIC, answers=None, samples=()):
    """Writes the files of an evaluation whose i-th question was answered rightly if `right[i]`.

    Args:
      right: None if the answer could not be graded.
      run: the folder of the run that it evaluates.
      answers: the reference answers, "0", "1", ... without.
      samples: for each question whether each sample of it is right.
    """
    answers = answers or [str(i) for i in range(len(right))]
    mean = sum(map(bool, right)) / len(right)
    rows = [{"step": step, metric: mean, "eval/arithmetic/prompts": len(right)}]
    if samples:
        shares = [sum(map(bool, each)) / len(each) for each in samples]
        rows[0][f"eval/arithmetic/avg_at_{len(samples[0])}"] = sum(shares) / len(shares)
    write_run(folder, kind="evaluation", rows=rows, config={"model": {"path": "m"}})
    environment = {"kind": "evaluation", "run": run and str(run), "step": step, "average": False}
    (folder / "environment.json").write_text(json.dumps(environment))
    greedy = [answered(i, answers[i], correct) for i, correct in enumerate(right)]
    drawn = [
        answered(i, answers[i], correct, sample=number)
        for i, each in enumerate(samples)
        for number, correct in enumerate(each)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in (*greedy, *drawn))
    (folder / "responses.jsonl").write_text(lines)
    return folder


def answered(number, answer, correct, **others):
    return {
        "id": str(number), "task": "arithmetic", "prompt": f"{number}+0=", "response": "#### 1",
        "answer": answer, "correct": None if correct is None else bool(correct),
    } | others  # fmt: skip


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


def asked(scores, digest="same", metric=SUMS):
    """Returns the questions of a run, by metric."""
    return {metric: Questions(digest=digest, scores=tuple(map(float, scores)))}


def run_with(algorithm, seed, scores, digest="same"):
    """Returns a run that has recorded the score of each question."""
    plain = run(algorithm, seed, sum(scores) / len(scores))
    return replace(plain, questions=asked(scores, digest))


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
