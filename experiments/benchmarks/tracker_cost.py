"""What mirroring a run into MLflow costs a step, measured within one run.

    python -m experiments.benchmarks.tracker_cost [KEY=VALUE ...]

Trains the default run (or the one that the overrides describe) with 40 metrics a step and a fresh
SQLite store. Blocks of steps with and without the tracker take turns, so that a slow minute slows
both. Prints, as shares of the time of the steps:

* `processor`: the CPU time of the tracker's thread and the time of its calls in the training
  thread, relative to the wall time of the steps. This is the cost: all of it, wherever it runs.
* `of_all_processor_time`: the same relative to the CPU time of the steps, of all threads. Other
  work on the machine does not change this figure.
* `slower`: how much longer the median step with the tracker took. This is mostly noise, since the
  thread runs beside the step.
"""

import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from omegaconf import OmegaConf

from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.runs.build import build
from rl4p.runs.record import Record
from rl4p.runs.tracker.background import BackgroundMirror
from rl4p.runs.tracker.mlflow import MLflow

METRICS = 40
WARM_UP, BLOCK, BLOCKS = 4, 10, 8  # steps, steps, blocks; half of them with the tracker


def main() -> None:
    """Prints the figures as JSON."""
    config = compose([*sys.argv[1:], f"steps={WARM_UP + BLOCK * BLOCKS}"])
    experiment = build(config)
    steps = ({**info.metrics} for info in train(experiment.loop, experiment.state))
    for _ in range(WARM_UP):
        next(steps)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "run"
        folder.mkdir()
        record = Record(folder)
        record.describe(OmegaConf.to_container(config, resolve=True), {})
        tracked = MLflow(uri=f"sqlite:///{temporary}/mlflow.db").open(folder)
        wait_until_idle()  # MLflow is imported and the store is made, once a run
        print(json.dumps(measure(steps, record, tracked), indent=2))
        assert tracked.finish("finished")


def measure(steps: Iterator[dict], record: Record, tracked: BackgroundMirror) -> dict:
    """Returns the figures of a run whose blocks of steps take turns."""
    seconds: dict[bool, list[float]] = {True: [], False: []}
    calls, wall, work, before = 0.0, 0.0, 0.0, cpu_seconds()
    for block in range(BLOCKS):
        told = block % 2 == 1
        began, worked = time.perf_counter(), time.process_time()
        for number in range(BLOCK):
            start = time.perf_counter()
            metrics = next(steps)
            names = sorted(metrics)[:METRICS]
            names += [f"more/{i}" for i in range(METRICS - len(names))]
            if told:
                row = {name: metrics.get(name, 0.5) for name in names}
                record.log(block * BLOCK + number, row)
                call = time.perf_counter()
                tracked.log(block * BLOCK + number, row)
                calls += time.perf_counter() - call
            seconds[told].append(time.perf_counter() - start)
        wall += (time.perf_counter() - began) * told
        work += (time.process_time() - worked) * told
    wait_until_idle()  # the last batch counts too
    medians = {told: statistics.median(times) for told, times in seconds.items()}
    return {
        "metrics_per_step": METRICS,
        "median_step_seconds": medians[False],
        "processor": (cpu_seconds() - before + calls) / wall,
        "of_all_processor_time": (cpu_seconds() - before) / work,
        "of_which_calls": calls / wall,
        "slower": medians[True] / medians[False] - 1,
    }


def cpu_seconds() -> float:
    """Returns the CPU time of the tracker's thread so far."""
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "tracker"]
    (times,) = [x for x in psutil.Process().threads() if x.id == thread.native_id]
    return times.user_time + times.system_time


def wait_until_idle() -> None:
    """Waits until the tracker's thread has computed nothing for eight seconds."""
    last, since = cpu_seconds(), time.perf_counter()
    while time.perf_counter() - since < 8:
        time.sleep(0.1)
        if (now := cpu_seconds()) > last:
            last, since = now, time.perf_counter()


if __name__ == "__main__":
    main()
