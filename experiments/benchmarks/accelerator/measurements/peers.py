"""rl4p beside transformers' generate() and TRL on the device: same weights, prompts and reward."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from experiments.benchmarks.accelerator.result import Result
from experiments.benchmarks.peers.__main__ import call

# For each measurement: the engine, the package that it needs, its script and its options.
ENGINES = {
    "rollout": (
        ("rl4p", "jax", "rl4p_generate.py", ()),
        ("transformers", "torch", "hf_generate.py", ()),
    ),
    "step": (
        ("rl4p", "jax", "rl4p_grpo.py", ("--micro-batch-tokens=8192",)),
        ("TRL", "trl", "trl_grpo.py", ("--micro-batch=16",)),
        ("TRL, bfloat16", "trl", "trl_grpo.py", ("--micro-batch=16", "--dtype=bfloat16")),
    ),
}


def measure(case: str, result: Result, folder: Path) -> None:
    shape, kind = case.split("-")
    workload = "tiny" if result.tiny else shape
    call(None, "workload.py", f"--workload={workload}", f"--checkpoint={folder}")
    words = [f"--workload={workload}", f"--checkpoint={folder}", "--warmup=2", "--steps=3"]
    if on_gpu():
        words.append("--device=gpu")
    failed = []
    for name, package, script, more in ENGINES[kind]:
        if importlib.util.find_spec(package) is None:
            result.add(engine=name, error=f"{package} is not installed")
            continue
        try:
            row = call(None, script, *words, *more)[-1]
        except SystemExit as error:
            failed.append(name)
            result.add(engine=name, error=str(error)[-300:])
            continue
        columns = (f"{kind}_s", "rollout_s", "tokens_per_s", "check_logprob", "peak_gib")
        found = {column: row[column] for column in columns if column in row}
        result.add(engine=f"{name} {row['version']}", sequences=row["sequences"], **found)
    if failed:
        raise SystemExit(f"These engines failed: {', '.join(failed)}.")


def on_gpu() -> bool:
    """Returns whether JAX finds a GPU, in a process that releases it again."""
    code = "import jax; print(jax.default_backend())"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return found.stdout.split()[-1] == "gpu"
