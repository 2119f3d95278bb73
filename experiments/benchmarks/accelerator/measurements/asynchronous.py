"""The asynchronous collector on one device."""

from pathlib import Path

from experiments.benchmarks.accelerator.result import Result
from experiments.drills.small_run import record, run, summary, trains

TINY = ("prompts_per_step=8",)


def measure(case: str, result: Result, folder: Path) -> None:
    words = ("tracker=none", "steps=8", "evaluation.every=0", "evaluation.prompts=16")
    for collector in ("synchronous", "asynchronous"):
        path = folder / collector
        more = (f"collector={collector}", f"hydra.run.dir={path}", *(TINY if result.tiny else ()))
        done = run(*words, *more)
        if done.returncode:
            raise SystemExit(f"collector={collector} failed: {done.stderr[-3000:]}")
        rows = [row for row in record(path) if row["step"] > 0]
        result.add(
            collector=collector,
            steps=len(rows),
            trains=trains(path),
            smallest_gradient_norm=min(row["update/grad_norm"] for row in rows),
            seconds=summary(path)["seconds"]["total"],
            programs=summary(path)["compilation"]["programs"],
        )
        if not trains(path):
            raise SystemExit(f"collector={collector}: a step had no gradient.")
