"""An estimate of the time of a run, made before its first step.

The least time of a phase is that of its products or of its memory, whichever is longer. A phase
takes longer: `SHARE` is the least time divided by the measured time.
"""

import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from rl4p.configuration.slices import Chip
from rl4p.distributed.mesh import Mesh
from rl4p.loop.evaluation import Evaluation
from rl4p.tools.planning.estimate import Parts, StepEstimate

# CPU: 0.5 in the steps of `experiment=smollm2_sums_cpu` on two cores, 0.65 in its evaluations. GPU:
# an H100 at the shape of Qwen2.5-1.5B (docs/evidence/measured.md), by its data sheet.
SHARE = {"cpu": 0.55, "gpu": 0.35}
WIDTH = 1536  # of the matrices that are multiplied to measure a rate
NUMBERS = 2**25  # that are read to measure the bandwidth of memory
REPETITIONS = 3  # after the first; the fastest counts


@dataclass(frozen=True, kw_only=True)
class ExpectedTime:
    """The estimated time of a run, for responses of full length and without compilation.

    Attributes:
      step, evaluation: the seconds of one; those of an evaluation that samples nothing are 0.
      steps, evaluations: the number of each in the run.
    """

    step: float
    evaluation: float
    steps: int
    evaluations: int

    @property
    def total(self) -> float:
        """The seconds of all steps and evaluations."""
        return self.steps * self.step + self.evaluations * self.evaluation

    def words(self) -> str:
        """Returns a sentence with the seconds of a step, and the minutes of the run."""
        parts, counts = f"a step {rounded(self.step)} s", f"{self.steps:,} steps"
        if self.evaluation:
            parts += f", an evaluation {rounded(self.evaluation)} s"
            counts += f" and {self.evaluations:,} evaluations"
        return (
            f"time by estimate, without compilation: {parts}; {counts} take "
            f"{max(1, round(self.total / 60)):,} min"
        )


def rounded(seconds: float) -> str:
    return f"{seconds:,.0f}" if seconds >= 10 else f"{seconds:.1f}"


def expected_time(
    estimate: StepEstimate, evaluation: Evaluation, steps: int
) -> ExpectedTime | None:
    """Returns the estimated time of a run; None if it cannot be known.

    It cannot if servers or other devices sample, or if the share of the platform has not been
    measured. Rewards and the scores of other models are not included.

    Args:
      estimate: the estimate of a step, on a chip whose rates are known.
      evaluation: the evaluation of the run.
      steps: the number of steps.
    """
    mesh = estimate.run.mesh
    share = SHARE.get(mesh.platform)
    seconds = [least(estimate.seconds[phase]) for phase in estimate.memory]
    if share is None or mesh.samples_apart or not all(seconds):
        return None
    return ExpectedTime(
        step=sum(seconds) / share,
        evaluation=of_evaluation(estimate, evaluation) / share,
        steps=steps,
        evaluations=evaluation.times(steps),
    )


def least(parts: Parts) -> float:
    """Returns the longest of the least seconds; 0 if none is known."""
    return max(parts.values(), default=0.0)


def of_evaluation(estimate: StepEstimate, evaluation: Evaluation) -> float:
    """Returns the least seconds of an evaluation: of its chunks, each with all its rows."""
    rollout, seconds = evaluation.phases.rollout, 0.0
    for together, count in Counter(chunk.together for chunk in evaluation.chunks()).items():
        run = replace(
            estimate.run,
            phases=evaluation.phases,
            prompts=evaluation.rows // together,
            group_size=together,
            response_tokens=rollout.max_response_tokens,
        )
        seconds += count * least(estimate.of_sampling(run))
    return seconds


def with_rates(chip: Chip, mesh: Mesh, dtype: Any) -> Chip:
    """Returns a chip with its rates of products and of memory, which are measured if unknown.

    All devices of a mesh that this process has are measured at once, since those of a CPU share
    its cores and its memory. Sending between them counts as nothing.
    """
    if chip.flops:
        return chip
    own = jax.process_index()
    devices = [x for x in mesh.devices.devices.flat if x.process_index == own]

    def seconds(function: Callable[[jax.Array], jax.Array], *shape: int) -> float:
        arrays = [jax.device_put(jnp.ones(shape, dtype), device) for device in devices]
        compiled, times = jax.jit(function), []
        for _ in range(1 + REPETITIONS):
            began = time.perf_counter()
            jax.block_until_ready([compiled(x) for x in arrays])
            times.append(time.perf_counter() - began)
        return min(times[1:])

    read = NUMBERS * jnp.dtype(dtype).itemsize
    return replace(
        chip,
        flops=2 * WIDTH**3 / seconds(lambda x: x @ x, WIDTH, WIDTH),
        bandwidth=read / seconds(jnp.sum, NUMBERS),
        network=math.inf,
    )
