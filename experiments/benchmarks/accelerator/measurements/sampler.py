"""Decoding against the time of reading parameters and cache."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.accelerator.rates import copy_rate, peak_gib, slowest_to_compile
from experiments.benchmarks.accelerator.result import Result
from experiments.benchmarks.accelerator.shapes import shape_of
from experiments.benchmarks.engine import Engine, sampler
from experiments.benchmarks.peers.workload import Workload
from experiments.benchmarks.timing import median_seconds, seconds
from rl4p.configuration.slices import chip_of
from rl4p.distributed.mesh import Mesh
from rl4p.loop.stopwatch import compilation


def floor_seconds(shape: Workload, parameters: int, itemsize: int, bandwidth: float) -> float:
    """Returns the time of reading the parameters and the written cache once per token."""
    of_token = 2 * shape.layers * shape.kv_heads * shape.head_dim * itemsize
    cache = of_token * shape.sequences * (shape.prompt_len + shape.max_new / 2)
    return shape.max_new * (parameters * itemsize + cache) / bandwidth


def measure(case: str, result: Result, folder: Path) -> None:
    shape = shape_of("1.5B", tiny=result.tiny, sequences=int(case))
    engine = Engine(shape, Mesh(), "bfloat16")
    bandwidth = copy_rate(tiny=result.tiny)
    shapes = jax.eval_shape(engine.policy().decoder.init, jax.random.key(0))
    parameters = sum(x.size for x in jax.tree.leaves(shapes))
    sample, before = sampler(engine, shape.max_new, ()), compilation()
    first = seconds(sample)
    compiled = compilation().since(before)
    result.add(
        sequences=shape.sequences,
        tokens=f"{shape.prompt_len} + {shape.max_new}",
        parameters=f"{parameters / 1e9:.2f}B",
        first_call_seconds=first,
        programs=compiled.programs,
        slowest_to_compile=slowest_to_compile(),
    )
    lengths = np.asarray(sample().response_mask_BT).sum(axis=1)
    assert (lengths == shape.max_new).all()
    took = median_seconds(sample, repeats=5)
    itemsize = jnp.dtype("bfloat16").itemsize
    floor = floor_seconds(shape, parameters, itemsize, bandwidth)
    chip = chip_of(jax.devices()[0].device_kind)
    least = floor_seconds(shape, parameters, itemsize, chip.bandwidth) if chip else 0.0
    result.more(
        seconds=took,
        tokens_per_second=shape.sequences * shape.max_new / took,
        milliseconds_per_token=1000 * took / shape.max_new,
        floor_milliseconds=1000 * floor / shape.max_new,
        share_of_floor=f"{floor / took:.0%}",
        share_at_peak=f"{least / took:.0%}" if chip else "unknown",
        copy_gb_per_second=bandwidth / 1e9,
        peak_gib=peak_gib() or "not reported",
    )
