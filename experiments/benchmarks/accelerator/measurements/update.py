"""The GRPO update in tokens per second and as a share of the rate of products."""

from dataclasses import replace
from pathlib import Path

import jax

from experiments.benchmarks.accelerator.rates import peak_gib, product_rate, slowest_to_compile
from experiments.benchmarks.accelerator.result import Result
from experiments.benchmarks.accelerator.shapes import shape_of
from experiments.benchmarks.engine import Engine, update
from experiments.benchmarks.peers.workload import step_flops
from experiments.benchmarks.timing import median_seconds, seconds
from rl4p.configuration.slices import chip_of
from rl4p.distributed.mesh import Mesh
from rl4p.model.attention import Kernel

LONG = 65536  # tokens of a step of long rows


def measure(case: str, result: Result, folder: Path) -> None:
    model, _, words = case.rpartition("-")
    mesh, tokens = Mesh(), int(words)
    if model == "0.6B":  # each row is one response, as long as a microbatch
        rows, tokens = LONG // tokens, tokens // (64 if result.tiny else 1)
        shape = shape_of(model, tiny=result.tiny)
        shape = replace(shape, group=1, prompts=rows, max_new=tokens - shape.prompt_len)
        attention: Kernel = "cudnn" if mesh.platform == "gpu" else "xla"
        engine = Engine(shape, mesh, "bfloat16", attention=attention, remat="layer")
    else:
        tokens //= 16 if result.tiny else 1
        shape = shape_of("1.5B", tiny=result.tiny, sequences=128)
        engine = Engine(shape, mesh, "bfloat16")
    rate = product_rate(tiny=result.tiny)
    step = update(engine, tokens, widths=1)  # all rows are equally long
    first = seconds(step)
    result.add(
        tokens_per_microbatch=tokens,
        sequences=f"{shape.sequences} x ({shape.prompt_len} + {shape.max_new})",
        first_call_seconds=first,
        slowest_to_compile=slowest_to_compile(),
    )
    took = median_seconds(step, repeats=3)
    flops = step_flops(shape, [shape.max_new] * shape.sequences)[1]
    chip = chip_of(jax.devices()[0].device_kind)
    result.more(
        seconds=took,
        tokens_per_second=shape.sequences * (shape.prompt_len + shape.max_new) / took,
        response_tokens_per_second=shape.sequences * shape.max_new / took,
        useful_tflop=flops / 1e12,
        share_of_products=f"{flops / took / rate:.0%} of {rate / 1e12:,.0f} TFLOP/s",
        share_of_peak=f"{flops / took / chip.flops:.1%}" if chip and chip.flops else "unknown",
        peak_gib=peak_gib() or "not reported",
    )
