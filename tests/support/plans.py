"""The small policy that tests plan."""

SMALL = (
    "model=scratch",
    "model.width=64",
    "model.layers=4",
    "model.heads=4",
    "model.num_kv_heads=2",
    "model.feed_forward_width=192",
    "mesh=fsdp_tp",
    "mesh.tp=2",
    "prompts_per_step=8",
    "group_size=4",
    "max_prompt_tokens=16",
    "max_response_tokens=16",
    "update.tokens_per_microbatch=64",
    "tracker=none",
)
LAYERS, WIDTH, INNER, KEYS = 4, 64, 192, 32
KERNELS = LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * KEYS + 3 * WIDTH * INNER)  # their parameters
TP, FSDP, MICROBATCHES = 2, 4, 4  # 8 rows on each of 4 devices; 2 rows of 32 columns at a time
# Prints the costs of the small run's programs, and some properties of their compiled text.
PROGRAMS = """
import json, sys
from dataclasses import asdict
from rl4p.configuration import compose, instantiate
from rl4p.tools.planning.costs import cost
from rl4p.tools.planning.hlo import collectives
from rl4p.tools.planning.programs import programs
from rl4p.tools.planning.report import described
from rl4p.tools.planning.topology import planned

config = compose(sys.argv[1:])
run, chip, memory = described(config, planned(instantiate(config.mesh)))
found = {program.phase: program for program in programs(run)}
decode = found["decode"]
print(json.dumps({
    "costs": {phase: asdict(cost(program, chip, run.mesh)) for phase, program in found.items()},
    "gathered": [c.bytes for c in collectives(decode.compiled.as_text()) if c.kind == "all-gather"],
    "iterations": {phase: program.iterations for phase, program in found.items()},
    "read": decode.read,
    "loops": {phase: x.compiled.as_text().count(" while(") for phase, x in found.items()},
    "live": {phase: program.live for phase, program in found.items()},
}))
"""
