"""A run that is killed with SIGKILL and resumed, compared with one that was not, bit for bit."""

import os
import subprocess
import time
from pathlib import Path

from experiments.benchmarks.accelerator.result import Result
from experiments.drills.small_run import SMALL, difference, record, run, start, trains

STEPS = ("steps=12", "checkpoint.every=2", "group_size=8", "optimizer.learning_rate=0.001")
LARGER = ("model.width=256", "model.layers=4", "model.heads=4", "model.feed_forward_width=704")
FLAG = "--xla_gpu_deterministic_ops=true"


def measure(case: str, result: Result, folder: Path) -> None:
    environment = dict(os.environ)
    if case == "deterministic":
        environment["XLA_FLAGS"] = f"{environment.get('XLA_FLAGS', '')} {FLAG}".strip()
    words = (*SMALL, *(() if result.tiny else LARGER), *STEPS)
    whole, again, killed = folder / "whole", folder / "again", folder / "killed"
    for each in (whole, again):
        done = run(*words, f"hydra.run.dir={each}", env=environment)
        if done.returncode:
            raise SystemExit(f"A run failed: {done.stderr[-3000:]}")
    if not trains(whole):
        raise SystemExit("A step of the run had no gradient.")
    result.add(what="two whole runs", differ_in=difference(again, whole) or "nothing")
    process = start(*words, f"hydra.run.dir={killed}", env=environment)
    step = killed_after(process, killed, 5)
    resumed = run(f"resume={killed}", env=environment)
    if resumed.returncode:
        raise SystemExit(f"The resumed run failed: {resumed.stderr[-3000:]}")
    differ_in = difference(killed, whole) or "nothing"
    result.add(what=f"killed after step {step} and resumed", differ_in=differ_in)


def killed_after(process: subprocess.Popen, folder: Path, step: int) -> int:
    """Kills a run once it has recorded a step; returns the last step that it has recorded."""
    while process.poll() is None:
        rows = record(folder) if (folder / "metrics.jsonl").is_file() else []
        if rows and rows[-1]["step"] >= step:
            process.kill()
            process.communicate()
            return record(folder)[-1]["step"]
        time.sleep(0.02)
    raise SystemExit(f"The run ended before it was killed: {process.communicate()[1][-3000:]}")
