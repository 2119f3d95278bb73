"""The attention kernels beside each other: results, gradients and times."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.accelerator.rates import attempted
from experiments.benchmarks.accelerator.result import Result
from experiments.benchmarks.accelerator.shapes import shape_of
from experiments.benchmarks.engine import Engine, update
from experiments.benchmarks.timing import median_seconds
from rl4p.distributed.mesh import Mesh
from rl4p.model.attention import Kernel
from tests.golden import forward

KERNELS: tuple[Kernel, ...] = ("xla", "cudnn")
TOKENS = 16384  # of all rows together


def measure(case: str, result: Result, folder: Path) -> None:
    {"kernels": kernels, "update": updates}[case](result)


def kernels(result: Result) -> None:
    """Compares logits and gradients with those of float32, and times the gradient."""
    shape = replace(shape_of("1.5B", tiny=result.tiny), vocab=1024, layers=4)
    tokens = 256 if result.tiny else TOKENS
    mesh = Mesh()
    params = Engine(shape, mesh, "float32").params(Engine(shape, mesh, "float32").policy())
    for T in (64, 65) if result.tiny else (1024, 1025, 4096):
        rows = np.random.default_rng(T).integers(0, shape.vocab, (max(1, tokens // T), T), np.int32)
        with jax.default_matmul_precision("highest"):
            exact = outcome(Engine(shape, mesh, "float32"), params, rows)
        for kernel in KERNELS:
            engine = Engine(shape, mesh, "bfloat16", attention=kernel)
            row: dict[str, Any] = {"kernel": kernel, "rows x length": f"{len(rows)} x {T}"}
            found: list[Any] = []

            def run(engine: Engine = engine, rows: Any = rows, found: list[Any] = found) -> None:
                found.append(jax.block_until_ready(outcome(engine, params, rows)))

            if error := attempted(run):
                result.add(**row, error=error)
                continue
            decoder = engine.policy().decoder
            took = median_seconds(lambda d=decoder, r=rows: forward.gradient(d, params, r))
            differences = [float(distance(a, b)) for a, b in zip(found[0], exact, strict=True)]
            result.add(
                **row,
                seconds_of_gradient=took,
                difference_of_logits_to_float32=differences[0],
                difference_of_gradients_to_float32=differences[1],
            )


def outcome(engine: Engine, params: Any, rows: np.ndarray) -> tuple[Any, Any]:
    """Returns the logits and the gradients."""
    decoder, T = engine.policy().decoder, rows.shape[1]
    places = np.broadcast_to(np.arange(T, dtype=np.int32), rows.shape), np.ones_like(rows)
    return forward.logits(decoder, params, rows, *places), forward.gradient(decoder, params, rows)


@jax.jit
def distance(found: Any, exact: Any) -> Any:
    """Returns the norm of the difference, relative to the norm, over all leaves."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True))
    difference = sum(jnp.sum(jnp.square(a.astype(jnp.float32) - b)) for a, b in pairs)
    return jnp.sqrt(difference / sum(jnp.sum(jnp.square(b)) for _, b in pairs))


def updates(result: Result) -> None:
    """Times gradient steps with and without shared prompts."""
    shape = replace(
        shape_of("1.5B", tiny=result.tiny, sequences=64), vocab=1024, layers=2 if result.tiny else 4
    )
    for kernel in KERNELS:
        for shared in (True, False):
            own = shape if shared else replace(shape, group=1, prompts=shape.sequences)
            row = {"kernel": kernel, "shared prompts": shared}
            engine = Engine(own, Mesh(), "bfloat16", attention=kernel)
            tokens = 512 if result.tiny else 8192
            steps: list[Any] = []

            def run(engine: Engine = engine, tokens: int = tokens, steps: Any = steps) -> None:
                steps.append(update(engine, tokens, widths=1))
                jax.block_until_ready(steps[0]())

            if error := attempted(run):
                result.add(**row, error=error)
            else:
                result.add(**row, seconds=median_seconds(steps[0]))
