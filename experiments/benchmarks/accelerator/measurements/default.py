"""The default run, as a user starts it."""

import json
import subprocess
import sys
import time
from pathlib import Path

from experiments.benchmarks.accelerator.result import Result
from experiments.drills.small_run import record, summary


def measure(case: str, result: Result, folder: Path) -> None:
    steps, every = (2, 1) if result.tiny else (40, 5)
    more = ["prompts_per_step=4", "evaluation.prompts=16"] if result.tiny else []
    run = folder / "run"
    words = [f"steps={steps}", f"evaluation.every={every}", f"hydra.run.dir={run}", *more]
    began = time.perf_counter()
    command = [sys.executable, "-m", "rl4p.train", "tracker=none", *words]
    code = subprocess.run(command, check=False).returncode
    seconds = time.perf_counter() - began
    result.add(what="exit code", value=code)
    result.add(what="seconds, start and compilation included", value=seconds)
    if code:
        raise SystemExit(f"The default run failed with exit code {code}.")
    found, rows = summary(run), record(run)
    for name, value in found["compilation"].items():
        result.add(what=f"compilation: {name}", value=value)
    for name, value in found["median_seconds"].items():
        result.add(what=f"median seconds of a step: {name}", value=value)
    accuracy = "eval/arithmetic/pass_at_1"
    curve = {row["step"]: round(row[accuracy], 3) for row in rows if accuracy in row}
    result.add(what="pass@1 by step", value=json.dumps(curve))
    trained = [row for row in rows if row["step"] > 0]
    result.add(what="smallest gradient norm", value=min(r["update/grad_norm"] for r in trained))
    result.add(
        what="largest gap of log-probabilities, sampler to trainer",
        value=max(row["rollout/logprob_gap_max"] for row in trained),
    )
    picture = run / "plots" / "learning_curve.png"
    (result.path.parent / "learning_curve.png").write_bytes(picture.read_bytes())
