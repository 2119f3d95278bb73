"""The rates of the device: products, copies and memory."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.monitoring
import jax.numpy as jnp

from experiments.benchmarks.engine import Products
from experiments.benchmarks.timing import median_seconds

GIB = 2**30
COMPILED = Counter[str]()  # seconds by the name of the function


def count_compilation(event: str, seconds: float, fun_name: str = "", **_: Any) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILED[fun_name] += seconds


jax.monitoring.register_event_duration_secs_listener(count_compilation)


def slowest_to_compile(count: int = 4) -> str:
    """Returns the functions that took longest to compile in this process, with their seconds."""
    return ", ".join(f"{name} {seconds:.0f} s" for name, seconds in COMPILED.most_common(count))


def products(*, tiny: bool) -> Products:
    """Returns products of large random matrices in bfloat16, one after the other."""
    n, times = (512, 4) if tiny else (8192, 200)
    # Scaled, so that the products neither grow nor vanish.
    a = jax.random.normal(jax.random.key(0), (n, n), jnp.bfloat16) * n**-0.5
    product = jax.jit(lambda a: jax.lax.fori_loop(0, times, lambda _, x: a @ x, a))
    return Products(lambda: product(a), times * 2.0 * n**3)


def product_rate(*, tiny: bool) -> float:
    """Returns the FLOPs per second of large products in bfloat16."""
    large = products(tiny=tiny)
    return large.flops / median_seconds(large.run)


def copy_rate(*, tiny: bool) -> float:
    """Returns the bytes per second that a copy reads and writes."""
    big = jnp.ones(2**20 if tiny else 2**29, jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    return 2 * big.nbytes / median_seconds(lambda: copy(big))


def peak_gib() -> float | None:
    """Returns the most memory of the first device that was in use so far; None if not reported."""
    stats = jax.local_devices()[0].memory_stats() or {}
    return stats["peak_bytes_in_use"] / GIB if "peak_bytes_in_use" in stats else None


def attempted(call: Callable[[], Any]) -> str:
    """Returns "" if the call succeeds, else the first line of what JAX or rl4p says against it.

    Only for what a device may lack (a kernel, memory): the rows of a table name it.
    """
    try:
        call()
    except (jax.errors.JaxRuntimeError, NotImplementedError, RuntimeError, ValueError) as error:
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0][:200]}"
    return ""
