"""Builds an experiment from the instantiated parts of a configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from omegaconf import DictConfig, OmegaConf

from rl4p.base.errors import InputError
from rl4p.base.types import Prompt, TrainState
from rl4p.configuration import instantiate
from rl4p.data.conversation import encode_demonstrations
from rl4p.data.pairs import encode_preferences
from rl4p.data.prompts import prompted
from rl4p.distributed import placement
from rl4p.distributed.mesh import Mesh
from rl4p.loop.batches import Loop
from rl4p.loop.checks import check_advantages, check_rewards, check_rollout, check_training_batch
from rl4p.loop.evaluation import Evaluation
from rl4p.loop.groups import check_filters
from rl4p.loop.phases import Phases
from rl4p.loop.scoring import Scoring
from rl4p.loop.source import open_source
from rl4p.loop.transform import GFPO, Drop, Relabel, Truncate
from rl4p.model.policy import Policy
from rl4p.protocols import phases as protocols
from rl4p.protocols.collection import Collector, OpenCollector, Transform
from rl4p.protocols.data_and_model import DataSet, Model, Records
from rl4p.protocols.hook import Hook, OpensHook
from rl4p.protocols.traits import AdvantageTraits, OptimizerTraits, RolloutTraits, require
from rl4p.runs.compatibility import (
    choice,
    idle_options,
    refuse_a_gap_that_is_never_measured,
    refuse_idle_roots,
    refuse_idle_routers,
    refuse_missing_or_idle_teachers,
    refuse_offloading_on_a_cpu,
    refuse_score_head_mismatch,
    refuse_top_p_with_exact_sums,
    refuse_what_cannot_act,
)
from rl4p.runs.description import describe
from rl4p.runs.evaluation import (
    Encode,
    build_evaluation,
    build_loss,
    check_references,
    check_tasks,
    check_term,
    encoder,
    evaluation_sampler,
    held_out_questions,
)
from rl4p.runs.policy import (
    build_reference,
    build_teacher,
    check_lengths,
    chosen_prompt_tokens,
    most_prompt_tokens,
    other_teacher,
)

PROTOCOLS = {
    "rollout": protocols.Rollout,
    "reward": protocols.Reward,
    "advantage": protocols.Advantage,
    "update": protocols.Update,
    "correction": protocols.Correction,
    "kl": protocols.KL,
    "entropy": protocols.Entropy,
    "critic": protocols.Critic,
}

# The checks of `debug.check_batches`.
CHECKS = {
    "rollout": check_rollout,
    "reward": check_rewards,
    "advantage": check_advantages,
    "update": check_training_batch,
}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The parts of a run, built and checked, before its first step."""

    config: Mapping[str, Any]  # resolved
    recorded: Mapping[str, str | int]  # values that the start has chosen, which a resumed run keeps
    loop: Loop
    state: TrainState
    prompts: Sequence[Prompt]  # to train on
    evaluation: Evaluation
    hooks: tuple[Hook | OpensHook, ...]  # the user's
    sizes: str  # a short description of the model, the data and a step, for the terminal
    idle_options: tuple[str, ...] = ()  # sentences about options that have no effect


def build(config: DictConfig) -> Experiment:
    """Instantiates all parts of a run and checks that they are compatible.

    Raises:
      InputError: parts are incompatible, or data or weights are wrong; names the configuration key.
    """
    mesh: Mesh = instantiate(config.mesh)
    phases = build_phases(config)
    rows = check_rows(config, phases, mesh)
    key = jax.random.key(config.seed)
    needs = phases.needs()
    refuse_missing_or_idle_teachers(config, phases)
    check_term(config, phases)
    optimizer: protocols.Optimizer = required(config.optimizer, protocols.Optimizer, "optimizer")
    refuse_offloading_on_a_cpu(config, mesh, optimizer)
    options: Collector = required(config.collector, Collector, "collector")
    refuse_a_gap_that_is_never_measured(phases.rollout, options)
    transforms = build_transforms(config, phases)
    model = required(config.model, Model, "model")
    data: DataSet = required(config.data, DataSet, "data")
    questions, held_out = prompted(data, data.train()), held_out_questions(config, data)
    check_tasks(phases, questions, *(each.questions for each in held_out))
    samples = RolloutTraits.read(phases.rollout).samples
    if samples and AdvantageTraits.read(phases.advantage).reads_total:
        check_references(phases, questions)
    policy, params = model.build(mesh, jax.random.fold_in(key, 0))
    refuse_idle_routers(phases, policy)
    refuse_score_head_mismatch(phases, policy)
    refuse_top_p_with_exact_sums(phases.rollout, policy)
    _ = policy.sampling_mesh  # which checks that the mesh of the sampler divides the policy
    recorded = model.recorded() if isinstance(model, Records) else {}
    if policy.date is not None and "date" in config.model:
        recorded["date"] = policy.date
    for name, value in recorded.items():
        OmegaConf.update(config, f"model.{name}", value)
    sampler = evaluation_sampler(config, phases)
    check_lengths(config, policy, phases.rollout.max_response_tokens, sampler.max_response_tokens)
    encode = encoder(config, policy)
    to_train = training_encoder(config, policy, phases, data)
    prompts, dropped = to_train(questions, system_prompt=data.system_prompt)
    evaluation_phases = replace(phases, rollout=sampler)
    # Only a loss of given responses needs no sampler.
    own_sampler = config.evaluation.rollout is not None
    samples = RolloutTraits.read(phases.rollout).samples
    sampled = held_out if samples or own_sampler or not config.evaluation.loss else ()
    evaluation, test_dropped = build_evaluation(
        config, evaluation_phases, policy, sampled, encode, rows=rows
    )

    own = other_teacher(config, phases)
    for_reference = needs if own is None else needs | own.needs
    reference, resettable = build_reference(config, policy, params, key, for_reference)
    scoring = Scoring(
        reference=reference,
        teacher=build_teacher(config, policy, key) if own is None else None,
        other_teacher=own,
        tasks=tuple(sorted({question.task for question in questions})),
        term=config.evaluation.term,
    )
    if config.evaluation.loss:
        loss, long = build_loss(
            config, phases, policy, held_out, to_train, evaluation.rows, scoring.reference
        )
        evaluation, test_dropped = replace(evaluation, loss=loss), test_dropped + long
    chosen_here: dict[str, str | int] = {}
    chosen_here |= {f"model.{name}": str(value) for name, value in recorded.items()}
    chosen = None
    if config.max_prompt_tokens is None:
        of_loss = evaluation.loss.prompts if evaluation.loss else ()
        sets = prompts, evaluation.prompts, of_loss
        chosen = chosen_prompt_tokens(most_prompt_tokens(config, policy), sets)
        OmegaConf.update(config, "max_prompt_tokens", chosen)
        chosen_here["max_prompt_tokens"] = chosen
    if own is not None:
        own.open(policy, config.max_prompt_tokens + config.max_response_tokens)
    if phases.estimator is not None:
        init = partial(phases.estimator.init, policy.decoder)
        params = params | {"critic": placement.init(mesh, init, policy.merged(params))}
    state = TrainState(
        step=mesh.replicate(np.int32(0)),
        params=params,
        optimizer_state=placement.init_beside(
            mesh,
            optimizer.transform().init,
            params,
            offload=OptimizerTraits.read(optimizer).offload,
        ),
        key=mesh.replicate(jax.random.fold_in(key, 1)),
        memory=mesh.replicate(phases.initial_memory()),
        average=jax.tree.map(jnp.copy, params) if config.ema.decay else {},
        reference=resettable,
    )
    source = open_source(instantiate(config.source), prompts, seed=config.seed)
    collector = options.open(
        phases,
        policy,
        source,
        prompts_per_step=config.prompts_per_step,
        group_size=config.group_size,
    )
    require(collector, OpenCollector, "collector")
    loop = Loop(
        policy=policy,
        phases=phases,
        source=source,
        collector=collector,
        optimizer=optimizer,
        group_size=config.group_size,
        steps=config.steps,
        scoring=scoring,
        reset_reference_every=config.reference.reset_every,
        average_decay=config.ema.decay,
        max_skipped=config.max_skipped,
        term=config.evaluation.term,
        transforms=transforms,
    )
    hooks = {name: instantiate(node) for name, node in config.hooks.items()}
    for name, hook in hooks.items():
        if not isinstance(hook, OpensHook):
            require(hook, Hook, f"hooks.{name}")
    return Experiment(
        recorded=chosen_here,
        config=OmegaConf.to_container(config, resolve=True),  # type: ignore[arg-type]
        loop=loop,
        state=state,
        prompts=prompts,
        evaluation=evaluation,
        hooks=tuple(hooks.values()),
        sizes=describe(config, loop, state, prompts, evaluation, (dropped, test_dropped), chosen),
        idle_options=tuple(idle_options(phases)),
    )


def required(node: DictConfig, contract: type, key: str) -> Any:
    """Instantiates a part of the configuration, which must have the members of its protocol."""
    part = instantiate(node)
    require(part, contract, key)
    return part


def build_transforms(config: DictConfig, phases: Phases) -> dict[str, Transform]:
    """Returns the transforms by name, in the order of the configuration."""
    transforms = {
        name: required(node, Transform, f"transforms.{name}")
        for name, node in config.transforms.items()
    }
    for name, transform in transforms.items():
        if isinstance(transform, Drop):
            check_filters(transform.filters, config.group_size, f"transforms.{name}.filters")
        if isinstance(transform, Truncate) and transform.most >= config.max_response_tokens:
            raise InputError(
                f"transforms.{name}.most={transform.most} has no effect, because no response "
                f"has more than max_response_tokens={config.max_response_tokens}: set fewer."
            )
        if isinstance(transform, GFPO) and transform.keep >= config.group_size:
            raise InputError(
                f"transforms.{name}.keep={transform.keep} drops none of group_size="
                f"{config.group_size} samples: keep fewer."
            )
        reads_total = AdvantageTraits.read(phases.advantage).reads_total
        if isinstance(transform, Relabel) and not reads_total:
            raise InputError(
                f"{choice('advantage', phases.advantage)} does not use the total reward, so "
                f"transforms.{name} would have no effect: leave it out."
            )
    return transforms


def training_encoder(config: DictConfig, policy: Policy, phases: Phases, data: DataSet) -> Encode:
    """Returns the encoder of the questions to train on, with the responses of the rollout."""
    traits = RolloutTraits.read(phases.rollout)
    if traits.samples:
        return encoder(config, policy)
    if getattr(data, "examples", ()):
        raise InputError(
            f"{choice('rollout', phases.rollout)} would train the answers of data.examples with "
            "each question: leave the examples out."
        )
    if traits.pairs and config.group_size != 2:
        raise InputError(
            f"group_size={config.group_size}, but {choice('rollout', phases.rollout)} gives two "
            "responses to each prompt: set group_size=2."
        )
    return partial(
        encode_preferences if traits.pairs else encode_demonstrations,
        tokenizer=policy.tokenizer,
        max_prompt_tokens=most_prompt_tokens(config, policy),
        end_ids=policy.end_ids,
        template=policy.template,
        whole=policy.decoder.config.labels > 0,
    )


def build_phases(config: DictConfig) -> Phases:
    """Returns the phases of a run, which are compatible."""
    phases = instantiate_phases(config)
    refuse_what_cannot_act(phases)
    refuse_idle_roots(config, phases)
    return phases


def instantiate_phases(config: DictConfig) -> Phases:
    """Returns the phases, which are not checked against one another."""
    phases = Phases(
        rollout=instantiate(config.rollout),
        reward=instantiate(config.reward),
        advantage=instantiate(config.advantage),
        update=instantiate(config["update"]),  # config.update is a method of mappings
        correction=instantiate(config.correction),
        kl=instantiate(config.kl),
        entropy=instantiate(config.entropy),
        critic=instantiate(config.critic),
        scores={name: instantiate(node) for name, node in config.scores.items()},
        checks=CHECKS if config.debug.check_batches else {},
    )
    for name, phase in phases.by_name.items():
        require(phase, PROTOCOLS[name], name)
        if name in ("kl", "entropy") and isinstance(phase, protocols.Remembers):
            require(phase, protocols.Adapts, name)
    for name, score in phases.scores.items():
        require(score, protocols.UserScore, f"scores.{name}")
    return phases


def check_rows(config: DictConfig, phases: Phases, mesh: Mesh) -> int:
    """Returns the number of sequences in a step; devices and minibatches must divide it."""
    rows = config.prompts_per_step * config.group_size
    # `mesh.size` initializes JAX; its devices cannot be chosen afterwards.
    if mesh.size < jax.device_count() and jax.process_count() > 1:
        raise InputError(
            f"mesh uses {mesh.size} devices, but {jax.process_count()} processes have "
            f"{jax.device_count()}: with several processes it must use all."
        )
    if rows % mesh.row_shards:
        raise InputError(
            f"prompts_per_step x group_size = {rows} sequences must be a multiple of "
            f"{mesh.row_shards}, so that the mesh can divide them over its devices."
        )
    together = phases.rows_together(config.group_size)
    if rows % (phases.update.minibatches * together):
        raise InputError(
            f"update.minibatches={phases.update.minibatches} does not divide the {rows} sequences "
            f"of a step into equal parts{' of whole groups' if together > 1 else ''}."
        )
    return rows
