"""What a run says before its first step: its sizes, and warnings about its options.

Most defaults suit the small policy of the package. Warnings are about options that rarely suit the
run or a large model, and about schedules that a resumed run puts on another curve.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
from omegaconf import DictConfig

from rl4p.base.types import Params, Prompt, TrainState
from rl4p.distributed.mesh import Mesh
from rl4p.distributed.placement import is_offloaded
from rl4p.learner.microbatches import rows_in
from rl4p.learner.optimizer import AdamW, OptimizerOptions
from rl4p.loop.batches import Loop
from rl4p.loop.evaluation import Evaluation
from rl4p.loop.phases import Phases
from rl4p.model.policy import Policy, padded_width
from rl4p.protocols.phases import Optimizer, Rollout
from rl4p.protocols.traits import RewardTraits, RolloutTraits
from rl4p.reward.answers import Correct

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


def unusual_options(loop: Loop, params: Params, prompts: Sequence[Prompt]) -> list[str]:
    """Returns a sentence for each option that rarely suits the steps or a model of this size.

    The learning rate and the format of answers are compared for sampled responses only. Supervised
    training has higher rates, and its answers show their format.
    """
    policy, optimizer = loop.policy, loop.optimizer
    has_schedule = isinstance(optimizer, OptimizerOptions)
    sentences = optimizer.unreached_rates(loop.steps) if has_schedule else []
    if not is_large(policy, params):
        return sentences
    size = size_of(policy, params)
    if policy.mesh.platform == "cpu":
        sentences.append(
            f"A model of {size / 1e6:,.0f}M parameters trains on a CPU, because JAX has no GPU or "
            "TPU here (a GPU needs its driver and rl4p[cuda])."
        )
    frozen = jax.tree.leaves(policy.frozen)
    if frozen and all(leaf.dtype == "float32" for leaf in frozen):
        sentences.append(
            f"The frozen parameters take {sum(leaf.nbytes for leaf in frozen) / 1e9:,.1f} GB in "
            "float32: model.param_dtype=bfloat16 halves that, and the adapters stay in float32."
        )
    if not RolloutTraits.read(loop.phases.rollout).samples:
        return sentences
    if isinstance(optimizer, AdamW):
        rate = optimizer.unusual_rate(size, adapters=bool(policy.frozen))
        sentences += [rate] if rate else []
    terms = (RewardTraits.read(loop.phases.reward).terms or {}).items()
    read = [x.unasked(name, prompts[0]) for name, x in terms if isinstance(x, Correct)]
    return sentences + [sentence for sentence in read if sentence][:1]


OF_THE_CURVE = ("schedule", "warmup_steps", "total_steps", "final_fraction")


def changed_schedules(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    optimizer: Optimizer,
    rollout: Rollout,
    step: int,
) -> list[str]:
    """Returns a sentence for each schedule whose next value is not that of its earlier curve.

    The schedules of the learning rate and of the temperature end at `steps` by default, so that
    more steps stretch them.

    Args:
      before, now: the resolved configurations of the earlier start and of this one.
    """
    if not step:
        return []
    rate = changed_rate(before, now, optimizer, step)
    temperature = changed_temperature(before, rollout, step)
    return [sentence for sentence in (rate, temperature) if sentence]


def changed_rate(
    before: Mapping[str, Any], now: Mapping[str, Any], optimizer: Optimizer, step: int
) -> str | None:
    """Returns a sentence if the next learning rate is another one than the earlier curve has."""
    old = before.get("optimizer", {})
    if not isinstance(optimizer, OptimizerOptions) or not {"learning_rate", *OF_THE_CURVE} <= {
        *old
    }:
        return None
    curve = replace(optimizer, **{name: old[name] for name in OF_THE_CURVE})
    changes = [
        f"optimizer.{name} is now {getattr(optimizer, name)} (it was {old[name]})"
        for name in OF_THE_CURVE
        if getattr(optimizer, name) != old[name]
    ]
    kept, rate = float(curve.learning_rate_at(step)), float(optimizer.learning_rate_at(step))
    if not changes or kept == rate:
        return None
    last = float(replace(curve, learning_rate=old["learning_rate"]).learning_rate_at(step - 1))
    said = (
        f"The learning rate goes from {last:.3g} in step {step} to {rate:.3g} in step {step + 1}, "
        f"because {' and '.join(changes)}"
    )
    if optimizer.total_steps != now["steps"] or old["total_steps"] != before.get("steps"):
        return f"{said}."  # the end of the schedule was chosen
    return (
        f"{said}: optimizer.total_steps={old['total_steps']} keeps the curve ({kept:.3g} in step "
        f"{step + 1}), and optimizer.schedule=constant optimizer.learning_rate={last:.3g} keeps "
        "the last rate."
    )


def changed_temperature(before: Mapping[str, Any], rollout: Any, step: int) -> str | None:
    """Returns a sentence if the next temperature is another one than the earlier curve has."""
    annealing = RolloutTraits.read(rollout).annealing
    old = ((before.get("rollout") or {}).get("annealing") or {}).get("steps")
    if annealing is None or old in (None, annealing.steps):
        return None
    earlier, start = replace(annealing, steps=old), rollout.temperature
    last, kept, next_ = earlier(start, step - 1), earlier(start, step), annealing(start, step)
    if kept == next_:
        return None
    return (
        f"The temperature goes from {last:.3g} in step {step} to {next_:.3g} in step {step + 1}, "
        f"because rollout.annealing.steps is now {annealing.steps} (it was {old}): "
        f"rollout.annealing.steps={old} keeps the curve ({kept:.3g} in step {step + 1})."
    )
