"""Kills the first run beside a new store of MLflow, and checks that the store is never broken.

    python -m experiments.drills.killed_stores [--kills 100]

A run is killed with SIGKILL at a moment of the first two seconds after the first file of its store
has appeared. The next run in the same place must be tracked, and after `rl4p.send` the store must
hold every step of both runs once.
"""

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from experiments.drills.outcome import tell
from experiments.drills.small_run import SMALL, record, run, start, trains

SECONDS = 2.0
WORDS = (*(word for word in SMALL if not word.startswith("tracker=")), "tracker=mlflow", "steps=40")
SEND = (sys.executable, "-m", "rl4p.send")


def killed(place: Path, seconds: float) -> str:
    """Starts a run in a folder, kills it `seconds` after its store was begun, and says when."""
    store = place / "outputs"
    process = start(*WORDS, f"hydra.run.dir={place / 'killed'}", cwd=place)
    while process.poll() is None and not any(
        path for path in store.glob("*mlflow.db*") if not path.name.endswith(".lock")
    ):
        time.sleep(0.001)
    time.sleep(seconds)
    if (store / "mlflow.db").exists():
        moment = "the store was complete"
    else:
        moment = "the store was being created"
    if process.poll() is not None:
        moment = "the run had ended"
    process.kill()
    process.communicate()
    return moment


def problem(place: Path) -> str:
    """Runs the next run and sends the killed one; returns what was wrong, or ""."""
    done = run(*WORDS, "steps=2", f"hydra.run.dir={place / 'next'}", cwd=place)
    if done.returncode or "MLflow" in done.stderr:
        return f"the next run: exit code {done.returncode}: {done.stderr[-500:]}"
    if not trains(place / "next"):
        return "a step of the next run had no gradient"
    folders = [place / name for name in ("killed", "next")]
    folders = [folder for folder in folders if (folder / "metrics.jsonl").exists()]
    if wrong := missing(place, folders[-1:]):
        return f"before rl4p.send, {wrong}"
    for folder in folders:
        done = run(f"run={folder}", program=SEND, cwd=place)
        if done.returncode:
            return f"rl4p.send: {done.stderr[-500:]}"
    return missing(place, folders)


def missing(place: Path, folders: list[Path]) -> str:
    """Returns which run is not in the store with each of its steps once, or ""."""
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{place / 'outputs' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("rl4p")
    runs = client.search_runs([experiment.experiment_id])
    by_folder = {stored.data.tags["folder"]: stored for stored in runs}
    for folder in folders:
        if (stored := by_folder.get(str(folder.resolve()))) is None:
            return f"{folder.name} is not in the store"
        for name in ("eval/arithmetic/pass_at_1", "update/grad_norm"):
            points = client.get_metric_history(stored.info.run_id, name)
            if Counter(x.step for x in points) != Counter(
                row["step"] for row in record(folder) if name in row
            ):
                return f"{name} of {folder.name} is not in the store once for each step"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    kills, wrong, moments = parser.parse_args().kills, [], Counter()
    for number in range(kills):
        with tempfile.TemporaryDirectory() as temporary:
            place = Path(temporary)
            seconds = SECONDS * number / kills
            moments[killed(place, seconds)] += 1
            if reason := problem(place):
                wrong.append(f"killed after {seconds:.2f} s: {reason}")
                print(wrong[-1], file=sys.stderr, flush=True)
    got = {**moments, "wrong": len(wrong)}
    asked = f"{kills} kills, the next run tracked, every step in the store once after rl4p.send"
    held = not wrong and not moments["the run had ended"] and len(moments) > 1
    return tell("killed_stores", asked, got, held=held)


if __name__ == "__main__":
    sys.exit(main())
