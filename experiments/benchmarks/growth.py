"""How the cost of a step grows with its sequences, its response tokens and the width of the model.

    python -m experiments.benchmarks.growth

Each row is a run in a process of its own: a model from scratch of four layers, whose responses all
have full length. The cost is the processor time of a step, the median of those after the second.
The work is the number of operations of its matrix products, attention included. An exponent is the
slope of the line through the logarithms; 1.0 against the work would be a constant time for each
operation. Writes growth.md and growth.png beside this file.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rl4p.distributed.mesh import Mesh
from rl4p.model.policy import Policy
from rl4p.model.scratch import Scratch
from rl4p.runs.pictures import COLOURS, panels, save

HERE = Path(__file__).parent
LAYERS, PROMPT, GROUP, WARM_UP, MEASURED = 4, 32, 8, 2, 3
HEAD_WIDTH, FEED_FORWARD = 32, 3  # the width of a head, and the width of a feed-forward / width


class Size(NamedTuple):
    """The size of a step: its sequences, their response tokens, and the width of the model."""

    sequences: int = 64
    tokens: int = 64
    width: int = 128


AXES = {
    "sequences": [Size(sequences=n) for n in (32, 64, 128, 256, 512)],
    "response tokens": [Size(tokens=n) for n in (32, 64, 128, 256, 512)],
    "width": [Size(width=n) for n in (64, 128, 256, 512)],
}
RUN = (
    *("model=scratch", "model._target_=experiments.benchmarks.growth.WithoutEnd"),
    *(f"model.layers={LAYERS}", "model.num_kv_heads=2", "trusted_targets=experiments"),
    *("mesh=auto", f"group_size={GROUP}", f"max_prompt_tokens={PROMPT}"),
    "+reward.terms.first._target_=rl4p.reward.form.Format",
    "+reward.terms.first.pattern='(?s)[A-Za-z0-9].*'",  # of the first character alone
)
TEXT = """# How the cost of a step grows

Processor seconds of a step on two cores, each row a run of its own: a model from scratch of four
layers, prompts of 32 tokens in groups of eight, responses of full length. An exponent is the slope
of the cost, by the logarithms: against the number in the first column, and against the work, which
are the operations of the matrix products with those of attention. The dashed line of the picture
has the slope 1. Made by

    python -m experiments.benchmarks.growth

![Cost against work](growth.png)
"""


@dataclass(frozen=True, kw_only=True)
class WithoutEnd(Scratch):
    """A model from scratch whose responses have full length, because no token ends them."""

    def policy(self, mesh: Mesh) -> Policy:
        return replace(super().policy(mesh), end_ids=())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--one", type=int, nargs=3, metavar=("SEQUENCES", "TOKENS", "WIDTH"))
    if one := parser.parse_args().one:
        print(json.dumps(seconds_of_steps(Size(*one))))
        return
    costs = {
        axis: [statistics.median(in_a_process(size)) for size in sizes]
        for axis, sizes in AXES.items()
    }
    (HERE / "growth.md").write_text(TEXT + "".join(table(axis, costs[axis]) for axis in AXES))
    draw(costs, HERE / "growth.png")


def in_a_process(size: Size) -> list[float]:
    """Returns the processor seconds of the measured steps."""
    command = [sys.executable, "-m", "experiments.benchmarks.growth", "--one", *map(str, size)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{size} failed:\n{done.stderr[-2000:]}")
    print(size, done.stdout.strip(), file=sys.stderr, flush=True)
    return json.loads(done.stdout.splitlines()[-1])


def seconds_of_steps(size: Size) -> list[float]:
    from rl4p.configuration import compose
    from rl4p.loop.loop import train
    from rl4p.runs.build import build

    words = (
        *(f"model.width={size.width}", f"model.heads={size.width // HEAD_WIDTH}"),
        *(f"model.feed_forward_width={FEED_FORWARD * size.width}", f"steps={WARM_UP + MEASURED}"),
        *(f"prompts_per_step={size.sequences // GROUP}", f"max_response_tokens={size.tokens}"),
    )
    experiment = build(compose([*RUN, *words]))
    times = [time.process_time()]
    for info in train(experiment.loop, experiment.state):
        times.append(time.process_time())
        if not info.metrics["update/grad_norm"] > 0:
            raise SystemExit("The run does not train.")
    return [after - before for before, after in itertools.pairwise(times)][WARM_UP:]


def work(size: Size) -> float:
    """Returns the operations of the matrix products of a step, attention included.

    A prompt is sampled from once for each group, and trained on with each response. An update costs
    three times a forward pass.
    """
    n, R, D = size
    heads, kv = D // HEAD_WIDTH, 2
    kernels = D * HEAD_WIDTH * (2 * heads + 2 * kv) + 3 * D * FEED_FORWARD * D
    prompts, rows = n // GROUP * PROMPT, n * (PROMPT + R)
    seen = PROMPT + R / 2  # columns, on average
    of_token = 2 * LAYERS * kernels
    attention = 4 * LAYERS * D
    logits = 2 * D * 264 * n * R
    rollout = (prompts + n * R) * of_token + n * R * seen * attention + logits
    update = rows * of_token + rows * (PROMPT + R) / 2 * attention + logits
    return rollout + 3 * update


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Returns the slope of the line through the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def table(axis: str, seconds: list[float]) -> str:
    sizes = AXES[axis]
    numbers = [getattr(size, "tokens" if axis == "response tokens" else axis) for size in sizes]
    works = list(map(work, sizes))
    rows = "".join(
        f"| {number} | {amount / 1e9:,.1f} | {cost:.2f} | {amount / 1e9 / cost:,.0f} |\n"
        for number, amount, cost in zip(numbers, works, seconds, strict=True)
    )
    return (
        f"\n## {axis.capitalize()}\n\nExponent against {axis}: {slope(numbers, seconds):.2f}. "
        f"Against work: {slope(works, seconds):.2f}.\n\n"
        f"| {axis} | work (GFLOP) | processor seconds | GFLOP/s |\n|---|---|---|---|\n{rows}"
    )


def draw(costs: dict[str, list[float]], path: Path) -> None:
    figure, (axes,) = panels(1, size=(5.5, 3.6))
    for (axis, sizes), colour in zip(AXES.items(), COLOURS, strict=False):
        works = [work(size) / 1e9 for size in sizes]
        axes.loglog(works, costs[axis], marker="o", color=colour, label=axis)
    works = [work(size) / 1e9 for size in itertools.chain(*AXES.values())]
    ends = np.array([0.7 * min(works), 1.4 * max(works)])
    axes.loglog(ends, ends * costs["sequences"][1] / (work(Size()) / 1e9), "--", color="grey")
    axes.set(xlabel="GFLOP of a step", ylabel="processor seconds")
    axes.legend(frameon=False, labelcolor="grey")
    save(figure, path)


if __name__ == "__main__":
    main()
