"""Peak host memory of an update, as planned and as measured.

    python -m experiments.benchmarks.plan_memory [KEY=VALUE ...]

Plans the update of a policy of 12M parameters on one CPU device, then runs it on real arrays in a
separate process. Planned: the compiler's arguments + outputs + temporaries - aliased. Measured: the
growth of resident memory during the call, plus the arguments, which are resident before it. The
growth is VmHWM, the peak that Linux lets a process reset, minus VmRSS before the call. The rows
have full length, as a plan assumes.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

RUN = (
    "model=scratch",
    "model.width=384",
    "model.layers=6",
    "model.heads=6",
    "model.num_kv_heads=2",
    "model.feed_forward_width=1024",
    "mesh=single",
    "prompts_per_step=8",
    "group_size=8",
    "max_prompt_tokens=32",
    "max_response_tokens=480",
    "tracker=none",
)
TOKENS_PER_MICROBATCH = (2048, 8192)


def resident(key: str) -> int:
    """Returns the bytes of VmRSS (current) or VmHWM (the peak since its reset)."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if x.startswith(key))
    return int(line.split()[1]) * 1024


def arrays(shapes: Any) -> Any:
    """Returns real arrays of these shapes: rows of full length and tiny parameters."""
    import jax
    import jax.numpy as jnp

    def of(path: tuple, x: jax.ShapeDtypeStruct) -> jax.Array:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.key(0)
        name = jax.tree_util.keystr(path)
        if "group_ids" in name:
            return jnp.arange(x.shape[0], dtype=x.dtype) // 8
        if "positions" in name:
            return jnp.broadcast_to(jnp.arange(x.shape[1], dtype=x.dtype), x.shape) + 0
        ones = "mask" in name or "segment" in name
        filled = 0.01 if "params" in name else 1 if ones else 0
        return jnp.full(x.shape, filled, x.dtype)

    return jax.tree.map_with_path(of, shapes)


def measure(overrides: list[str]) -> dict[str, float]:
    import jax

    from rl4p.configuration import compose, instantiate
    from rl4p.tools.planning.costs import cost
    from rl4p.tools.planning.programs import updates
    from rl4p.tools.planning.report import described

    config = compose(overrides)
    run, chip, _ = described(config, instantiate(config.mesh))
    (program,) = updates(run)
    planned = cost(program, chip, run.mesh)
    state, batch = arrays(run.state), arrays(run.batch())
    coefficients = run.phases.coefficients({}, 0)
    jax.block_until_ready((state, batch))
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM is VmRSS from here on
    before = resident("VmRSS")
    result = program.compiled({}, state, batch, coefficients)
    jax.block_until_ready(result)
    grown = resident("VmHWM") - before
    return {
        "planned": planned.arguments + planned.outputs + planned.temporaries - planned.aliased,
        "measured": grown + planned.arguments,
        "temporaries": planned.temporaries,
        "arguments": planned.arguments,
    }


def main() -> None:
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    for tokens in TOKENS_PER_MICROBATCH:
        words = [*RUN, f"update.tokens_per_microbatch={tokens}", *sys.argv[1:]]
        command = [sys.executable, "-m", __spec__.name, "--measure", *words]
        printed = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
        found = json.loads(printed.stdout.splitlines()[-1])
        sizes = ", ".join(f"{name} {size / 2**20:,.0f} MiB" for name, size in found.items())
        print(f"{tokens} tokens a microbatch: {sizes}: {found['planned'] / found['measured']:.3f}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2:])))
    else:
        main()
