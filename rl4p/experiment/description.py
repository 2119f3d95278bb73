"""A short description of a run before it starts: its model, its data and its steps."""

import jax
from omegaconf import DictConfig

from rl4p.distributed.mesh import Mesh
from rl4p.learner.microbatches import rows_in
from rl4p.loop.evaluation import Evaluation
from rl4p.loop.phases import Phases
from rl4p.model.policy import Policy, padded_width
from rl4p.protocols.traits import RolloutTraits
from rl4p.types import Params, Prompt


def describe_model(policy: Policy, params: Params) -> str:
    """Describes the numbers of parameters, and the devices."""
    trained, frozen = (
        sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (params, policy.frozen)
    )
    share = f" and {frozen / 1e6:,.2f}M frozen ({trained / (trained + frozen):.1%} trained)"
    devices = policy.mesh.devices.devices.flatten()
    return (
        f"{trained / 1e6:,.2f}M parameters{share if frozen else ''} on {len(devices)} "
        f"{devices[0].device_kind} ({devices[0].platform})"
    )


def describe_data(
    prompts: list[Prompt], dropped: int, evaluation: Evaluation, test_dropped: int
) -> str:
    """Describes the numbers of prompts, and how many were too long."""
    over = dropped + test_dropped
    samples = f", each with {evaluation.samples} samples" if evaluation.samples else ""
    return f"{len(prompts):,} prompts and {len(evaluation.prompts):,} held out{samples}" + (
        f" ({over:,} dropped for being longer than max_prompt_tokens)" if over else ""
    )


def describe_step(config: DictConfig, phases: Phases, prompts: list[Prompt], mesh: Mesh) -> str:
    """Describes the derived sizes: sequences, tokens (with padding), updates, microbatches."""
    sequences = config.prompts_per_step * config.group_size
    width = padded_width(max(len(prompt.tokens) for prompt in prompts))
    width += phases.rollout.max_response_tokens
    update = phases.update
    updates = update.epochs * update.minibatches
    rows = -(-sequences // update.minibatches // mesh.row_shards)  # on each device
    microbatches = -(-rows // rows_in(width, update.tokens_per_microbatch))
    epochs = config.steps * config.prompts_per_step / len(prompts)
    trains_on_data = not RolloutTraits.read(phases.rollout).samples
    return (
        f"a step: {config.prompts_per_step} prompts x {config.group_size} samples = {sequences} "
        f"sequences, at most {sequences * width:,} tokens, {updates} "
        f"update{'s' * (updates > 1)} of at most {microbatches} "
        f"microbatch{'es' * (microbatches > 1)}"
        + (f"; {config.steps:,} steps are {epochs:.3g} epochs" if trains_on_data else "")
    )
