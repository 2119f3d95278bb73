"""Estimates and the memory of compiled programs."""

from rl4p.configuration import compose, instantiate
from rl4p.configuration.slices import Chip
from rl4p.tools.planning.abstract import abstract_run
from rl4p.tools.planning.estimate import StepEstimate
from rl4p.tools.planning.topology import EstimatedMesh, estimated, memory_of

CPU = Chip(platform="cpu", kind="cpu")
SMALL = (
    "model=scratch",
    "model.width=256",
    "model.layers=6",
    "model.heads=8",
    "model.num_kv_heads=2",
    "model.feed_forward_width=768",
    "model.vocabulary=8192",
    "mesh=single",
    "tracker=none",
    "prompts_per_step=8",
    "group_size=8",
    "max_prompt_tokens=64",
    "max_response_tokens=192",
    "update.microbatch_widths=1",
)


def estimate_of(*overrides, small=SMALL):
    config = compose([*small, *overrides])
    mesh = estimated(instantiate(config.mesh))
    chip = memory_of(mesh)[0] if isinstance(mesh, EstimatedMesh) else CPU
    return StepEstimate(run=abstract_run(config, mesh), chip=chip)
