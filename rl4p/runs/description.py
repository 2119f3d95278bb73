"""A short description of a run before it starts: its model, its data and its steps."""

import jax
from omegaconf import DictConfig

from rl4p.base.types import Params, Prompt, TrainState
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.placement import is_offloaded
from rl4p.learner.microbatches import rows_in
from rl4p.loop.batches import Loop
from rl4p.loop.evaluation import Evaluation
from rl4p.loop.phases import Phases
from rl4p.model.policy import Policy, padded_width
from rl4p.protocols.traits import RolloutTraits

SLOW_ON_A_CPU = 50e6  # parameters; a step of the recipes takes minutes with more


def describe(
    config: DictConfig,
    loop: Loop,
    state: TrainState,
    prompts: list[Prompt],
    evaluation: Evaluation,
    dropped: tuple[int, int],
    chosen: int | None = None,
) -> str:
    """Describes a run in a few lines: its model, data, steps, evaluations and memory.

    Args:
      dropped: the numbers of prompts and of held-out prompts that were too long.
      chosen: `max_prompt_tokens`, if the data chose it.
    """
    lines = (
        describe_model_and_data(loop.policy, state.params, prompts, evaluation, sum(dropped)),
        describe_step(config, loop.phases, prompts, loop.policy.mesh),
        describe_evaluation(config, evaluation),
        describe_memory(loop.policy, state),
        f"max_prompt_tokens={chosen}, by the longest prompt of the data" if chosen else "",
    )
    return "\n".join(filter(None, lines))


def describe_model_and_data(
    policy: Policy, params: Params, prompts: list[Prompt], evaluation: Evaluation, dropped: int
) -> str:
    """Describes the numbers of parameters, devices and prompts, and how many were too long."""
    trained, frozen = (
        sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (params, policy.frozen)
    )
    share = f" and {frozen / 1e6:,.2f}M frozen ({trained / (trained + frozen):.1%} trained)"
    devices = policy.mesh.devices.devices.flatten()
    samples = f", each with {evaluation.samples} samples" if evaluation.samples else ""
    long = f" ({dropped:,} dropped for being longer than max_prompt_tokens)" if dropped else ""
    return (
        f"{trained / 1e6:,.2f}M parameters{share if frozen else ''} on {len(devices)} "
        f"{devices[0].device_kind} ({devices[0].platform}), attention by "
        f"{policy.decoder.attention}; "
        f"{len(prompts):,} prompts and {len(evaluation.prompts):,} held out{samples}{long}"
    )


def describe_step(config: DictConfig, phases: Phases, prompts: list[Prompt], mesh: Mesh) -> str:
    """Describes the derived sizes: sequences, tokens (with padding), updates, microbatches."""
    sequences = config.prompts_per_step * config.group_size
    width = padded_width(max(len(prompt.tokens) for prompt in prompts))
    width += phases.rollout.max_response_tokens
    update = phases.update
    updates = update.epochs * update.minibatches
    rows = -(-sequences // update.minibatches // mesh.row_shards)  # on each device
    own = -(-width // mesh.column_shards)
    microbatches = -(-rows // rows_in(rows, own, update.tokens_per_microbatch))
    epochs = config.steps * config.prompts_per_step / len(prompts)
    trains_on_data = not RolloutTraits.read(phases.rollout).samples
    return (
        f"a step: {config.prompts_per_step} prompts x {config.group_size} samples = {sequences} "
        f"sequences, at most {sequences * width:,} tokens, {updates} "
        f"update{'s' * (updates > 1)} of at most {microbatches} "
        f"microbatch{'es' * (microbatches > 1)}"
        + (f"; {config.steps:,} steps are {epochs:.3g} epochs" if trains_on_data else "")
    )


def describe_evaluation(config: DictConfig, evaluation: Evaluation) -> str:
    """Describes the evaluations of the whole run beside its training; "" if nothing is sampled."""
    prompts, times = sum(map(len, evaluation.sets)), evaluation.times(config.steps)
    if not prompts:
        return ""
    responses = times * prompts * (1 + evaluation.samples)
    trained = config.steps * config.prompts_per_step * config.group_size
    more = "; more than training, unless evaluation.prompts or evaluation.every changes it"
    return (
        f"evaluation: {times} times {prompts:,} prompts = {responses:,} responses, beside "
        f"{trained:,} to train on{more * (responses > trained)}"
    )


def describe_memory(policy: Policy, state: TrainState) -> str:
    """Describes the memory of the state on all devices, which is the size of a checkpoint too."""
    parameters, optimizer, frozen, others = (
        sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
        for tree in (
            state.params,
            state.optimizer_state,
            policy.frozen,
            (state.average, state.reference),
        )
    )
    host = any(map(is_offloaded, jax.tree.leaves(state.optimizer_state)))
    parts = {
        "parameters": parameters,
        "optimizer (in the host)" if host else "optimizer": optimizer,
        "frozen": frozen,
        "copies": others,
    }
    words = ", ".join(f"{name} {in_words(size)}" for name, size in parts.items() if size)
    whole = parameters + optimizer + others
    return f"memory: {words}, and gradients and activations; a checkpoint has {in_words(whole)}"


def in_words(size: int) -> str:
    """Returns a number of bytes with its unit."""
    return f"{size / 1e9:,.2f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def size_of(policy: Policy, params: Params) -> int:
    """Returns the number of parameters, frozen ones included."""
    return sum(leaf.size for leaf in jax.tree.leaves((params, policy.frozen)))


def is_large(policy: Policy, params: Params) -> bool:
    return size_of(policy, params) >= SLOW_ON_A_CPU
