"""The GRPO update in tokens per second and as a share of the rate of products."""

from pathlib import Path

from experiments.benchmarks.accelerator.rates import peak_gib, product_rate, slowest_to_compile
from experiments.benchmarks.accelerator.result import Result
from experiments.benchmarks.accelerator.shapes import shape_of
from experiments.benchmarks.engine import Engine, update
from experiments.benchmarks.peers.workload import step_flops
from experiments.benchmarks.timing import median_seconds, seconds
from rl4p.distributed.mesh import Mesh


def measure(case: str, result: Result, folder: Path) -> None:
    shape = shape_of("1.5B", tiny=result.tiny, sequences=128)
    rate = product_rate(tiny=result.tiny)
    tokens = int(case) // (16 if result.tiny else 1)
    step = update(Engine(shape, Mesh(), "bfloat16"), tokens, widths=1)  # all rows are equally long
    first = seconds(step)
    result.add(
        tokens_per_microbatch=tokens,
        sequences=f"{shape.sequences} x ({shape.prompt_len} + {shape.max_new})",
        first_call_seconds=first,
        slowest_to_compile=slowest_to_compile(),
    )
    took = median_seconds(step, repeats=3)
    flops = step_flops(shape, [shape.max_new] * shape.sequences)[1]
    result.more(
        seconds=took,
        tokens_per_second=shape.sequences * (shape.prompt_len + shape.max_new) / took,
        response_tokens_per_second=shape.sequences * shape.max_new / took,
        useful_tflop=flops / 1e12,
        share_of_products=f"{flops / took / rate:.0%} of {rate / 1e12:,.0f} TFLOP/s",
        peak_gib=peak_gib() or "not reported",
    )
