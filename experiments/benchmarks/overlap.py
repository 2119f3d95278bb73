"""How much of the time of a step sampling in the background hides, on two devices of one machine.

    python -m experiments.benchmarks.overlap [KEY=VALUE ...]

Divides a CPU of two cores into two devices: one samples, one trains. Trains the same run with
`collector=synchronous` and with `collector=asynchronous`, in blocks of steps that take turns, so
that a slow minute slows both. Prints medians over the steps:

* `rollout`, `update`: the seconds of the synchronous run, and `sum`, those of its whole step.
* `step`: the seconds of an asynchronous step.
* `of_the_longer`: `step` divided by the longer of `rollout` and `update`. 1 would hide all of the
  shorter.
* `of_the_sum`: `step` divided by `sum`.

XLA gives all devices of a CPU one pool of threads. A large matrix product of one device uses both
cores, so that nothing is left for the other device to hide. The default run therefore has a narrow
model with many layers, small microbatches and few slots: its operations use one core each, and
sampling takes about as long as the update. Overrides replace parts of it.
"""

import json
import os
import statistics
import sys
from collections.abc import Iterator

# Without these, one device runs independent operations of a program on both cores.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_multi_thread_eigen=false --xla_cpu_enable_concurrency_optimized_scheduler=false",
)

from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.runs.build import build

RUN = (
    "mesh.cpu_devices=2",
    "mesh.rollout_devices=1",
    "model=scratch",
    "model.width=32",
    "model.layers=12",
    "model.heads=2",
    "model.feed_forward_width=64",
    "prompts_per_step=16",
    "max_response_tokens=160",
    "rollout.slots=6",
    "update.tokens_per_microbatch=224",
    "update.microbatch_widths=1",
)
WARM_UP, BLOCK, BLOCKS = 4, 5, 6  # steps, steps, blocks of each kind


def main() -> None:
    """Prints the figures as JSON."""
    runs = {name: steps(name, sys.argv[1:]) for name in ("synchronous", "asynchronous")}
    found: dict[str, list[dict]] = {name: [] for name in runs}
    for run in runs.values():
        for _ in range(WARM_UP):
            next(run)
    for _ in range(BLOCKS):
        for name, run in runs.items():
            next(run)  # what was sampled while the other run had the machine
            found[name] += [next(run) for _ in range(BLOCK)]
    print(json.dumps(figures(found["synchronous"], found["asynchronous"]), indent=2))


def steps(collector: str, overrides: list[str]) -> Iterator[dict]:
    """Yields the metrics of the steps of a run."""
    count = WARM_UP + BLOCKS * (BLOCK + 1)
    config = compose([*RUN, *overrides, f"collector={collector}", f"steps={count}"])
    experiment = build(config)
    for info in train(experiment.loop, experiment.state):
        yield info.metrics
    experiment.loop.collector.close()


def figures(synchronous: list[dict], asynchronous: list[dict]) -> dict[str, float]:
    """Returns the medians and their ratios."""

    def median(rows: list[dict], name: str) -> float:
        return statistics.median(row[f"time/{name}"] for row in rows)

    rollout, update = (median(synchronous, name) for name in ("rollout", "update"))
    whole, step = median(synchronous, "step"), median(asynchronous, "step")
    return {
        "rollout": rollout,
        "update": update,
        "sum": whole,
        "step": step,
        "of_the_longer": step / max(rollout, update),
        "of_the_sum": step / whole,
        "trainer_waits": median(asynchronous, "trainer_waits"),
        "sampler_waits": median(asynchronous, "sampler_waits"),
    }


if __name__ == "__main__":
    main()
