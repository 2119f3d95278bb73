"""Kills the first run beside a new store of MLflow, and checks that the store is never broken.

    python -m experiments.drills.killed_stores [--kills 100]

A run is killed with SIGKILL after the first file of its store has appeared, at moments spread over
half again the time that the store takes to be complete on this machine. The next run in the same
place must be tracked, and after `rl4p.send` the store must hold every step of both runs once. Each
command is a process that is forked from one which has imported the libraries, and nothing else,
since imports would take most of the time.
"""

import argparse
import multiprocessing
import os
import sqlite3
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path

from experiments.drills.outcome import tell
from experiments.drills.small_run import SMALL, record, trains
from rl4p.runs.tracker.mlflow import SETTINGS

LONGER = 1.5  # the last moment, as a multiple of the time in which the store is complete
WORDS = (*(word for word in SMALL if not word.startswith("tracker=")), "tracker=mlflow")
LIBRARIES = ("rl4p.runs.run", "rl4p.runs.tracker.sending", "mlflow.store.tracking.sqlalchemy_store")


def command(program: str, words: Sequence[str], place: Path) -> None:
    """Runs a command in this process, in a folder, with its output in a file."""
    with (place / "output.txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.chdir(place)
    sys.argv = [program, *words]
    code = import_module(program).main()
    sys.stdout.flush()
    os._exit(int(code or 0))


def started(program: str, *words: str, place: Path) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(
        target=command, args=(program, words, place)
    )
    process.start()
    return process


def finished(program: str, *words: str, place: Path) -> tuple[int | None, str]:
    """Runs a command to its end, and returns its exit code and its output."""
    process = started(program, *words, place=place)
    process.join()
    return process.exitcode, (place / "output.txt").read_text()


def begun(place: Path) -> multiprocessing.Process:
    """Starts a run in a folder, and returns it when the first file of its store has appeared."""
    store, words = place / "outputs", (*WORDS, "steps=2000", f"hydra.run.dir={place / 'killed'}")
    process = started("rl4p.train", *words, place=place)
    while process.is_alive() and not any(
        path for path in store.glob("*mlflow.db*") if not path.name.endswith(".lock")
    ):
        time.sleep(0.001)
    return process


def seconds_to_complete() -> float:
    """Returns the time from the first file of a store until it is complete."""
    with tempfile.TemporaryDirectory() as place:
        process, start = begun(Path(place)), time.perf_counter()
        while process.is_alive() and not (Path(place) / "outputs" / "mlflow.db").exists():
            time.sleep(0.001)
        seconds = time.perf_counter() - start
        process.kill()
        process.join()
        return seconds


def killed(place: Path, seconds: float) -> str:
    """Starts a run in a folder, kills it `seconds` after its store was begun, and says when."""
    process = begun(place)
    time.sleep(seconds)
    if not process.is_alive():
        moment = "the run had ended"
    elif (place / "outputs" / "mlflow.db").exists():
        moment = "the store was complete"
    else:
        moment = "the store was being created"
    process.kill()
    process.join()
    return moment


def problem(place: Path) -> str:
    """Runs the next run and sends the killed one; returns what was wrong, or ""."""
    words = (*WORDS, "steps=2", f"hydra.run.dir={place / 'next'}")
    code, output = finished("rl4p.train", *words, place=place)
    if code:
        return f"the next run: exit code {code}: {output[-500:]}"
    about_mlflow = [line for line in output.splitlines() if "MLflow" in line]
    if said := [line for line in about_mlflow if not line.startswith("The runs in MLflow (")]:
        return f"the next run: {' '.join(said)}"
    if not trains(place / "next"):
        return "a step of the next run had no gradient"
    folders = [place / name for name in ("killed", "next")]
    folders = [folder for folder in folders if (folder / "metrics.jsonl").exists()]
    if wrong := missing(place, folders[-1:]):
        return f"before rl4p.send, {wrong}"
    for folder in folders:
        code, output = finished("rl4p.send", f"run={folder}", place=place)
        if code:
            return f"rl4p.send: exit code {code}: {output[-500:]}"
    return missing(place, folders)


def missing(place: Path, folders: list[Path]) -> str:
    """Returns which run is not in the store with each of its steps once, or ""."""
    with closing(sqlite3.connect(place / "outputs" / "mlflow.db")) as store:
        folder_of = "SELECT value, run_uuid FROM tags WHERE key = 'folder'"
        runs = dict(store.execute(folder_of).fetchall())
        for folder in folders:
            if (run := runs.get(str(folder.resolve()))) is None:
                return f"{folder.name} is not in the store"
            for name in ("eval/arithmetic/pass_at_1", "update/grad_norm"):
                query = "SELECT step FROM metrics WHERE run_uuid = ? AND key = ?"
                steps = Counter(step for (step,) in store.execute(query, (run, name)))
                if steps != Counter(row["step"] for row in record(folder) if name in row):
                    return f"{name} of {folder.name} is not in the store once for each step"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    kills, wrong, moments = parser.parse_args().kills, [], Counter()
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    for name in LIBRARIES:
        import_module(name)
    last = LONGER * seconds_to_complete()
    for number in range(kills):
        with tempfile.TemporaryDirectory() as temporary:
            place = Path(temporary)
            seconds = last * number / kills
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
