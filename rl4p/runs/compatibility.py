"""Refuses combinations of parts in which an option has no effect: no option is silently ignored.

Only what concerns two parts is here. A bound of one option is in its annotation, and what concerns
the options of one class is in that class: `__post_init__` refuses them, `idle_options` names them.

A rule is a function of the phases. It returns an error message, or None if the combination is
valid. The rules read the traits of the phases (`protocols/traits.py`).
"""

import re
from collections.abc import Iterator
from typing import Any

from omegaconf import DictConfig

from rl4p.advantage.gdpo import GDPO
from rl4p.base.errors import InputError
from rl4p.distributed.mesh import Mesh
from rl4p.loop.phases import Phases
from rl4p.protocols.phases import NamesIdleOptions, Optimizer
from rl4p.protocols.traits import (
    AdvantageTraits,
    CollectorTraits,
    CorrectionTraits,
    OptimizerTraits,
    PenaltyTraits,
    RewardTraits,
    RolloutTraits,
    TermTraits,
    UpdateTraits,
)
from rl4p.rollout.sampler import Sampler


def refuse_what_cannot_act(phases: Phases) -> None:
    """Checks every rule about two phases.

    Raises:
      InputError: a rule is broken; the message is the sentence of the first one.
    """
    for rule in (
        samples_of_another_model,
        distributions_that_the_trainer_does_not_score,
        advantages_that_nothing_reads,
        advantages_of_one_sign_in_pairs,
        turns_in_single_responses,
        divergence_in_a_reward_that_nothing_reads,
        demonstrations_in_the_place_of_samples,
        pairs_that_are_not_compared,
        packed_rows_that_are_read_as_sequences,
        importance_that_counts_twice,
    ):
        if sentence := rule(phases):
            raise InputError(sentence)


def refuse_a_gap_that_is_never_measured(rollout: Any, collector: Any) -> None:
    """Refuses a limit of the sampler's gap if no token has the weights of its step.

    Raises:
      InputError: the limit would be checked in the first step alone.
    """
    limit = RolloutTraits.read(rollout).max_logprob_gap
    if limit is not None and not CollectorTraits.read(collector).fresh:
        raise InputError(
            f"rollout.max_logprob_gap={limit:g} would have no effect after the first step, because "
            f"it compares the tokens that were drawn with the weights of the step, and "
            f"{choice('collector', collector)} trains tokens of earlier weights alone: set "
            "rollout.max_logprob_gap=null."
        )


def refuse_offloading_on_a_cpu(config: DictConfig, mesh: Mesh, optimizer: Optimizer) -> None:
    """Refuses to keep arrays in the memory of the host if the devices have no other.

    Raises:
      InputError: an option would have no effect.
    """
    options = {
        "optimizer": OptimizerTraits.read(optimizer).offload,
        "reference": config.reference.offload,
    }
    for name, offload in options.items():
        if offload and mesh.platform == "cpu":
            raise InputError(
                f"{name}.offload=true has no effect on a CPU, whose devices use the memory of the "
                "host: leave it out."
            )


def choice(group: str, phase: Any) -> str:
    """Returns a phase as GROUP=NAME, or with the class of a user's phase.

    A phase of rl4p has a module of the name, or its group has one module, whose classes are named
    like the options: `TokenMask` is token_mask.
    """
    module, name = type(phase).__module__, type(phase).__name__
    if re.fullmatch(rf"rl4p\..*\b{group}\.\w+", module):
        name = module.rpartition(".")[2]
    elif re.fullmatch(rf"rl4p\..*\b{group}", module):
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
    return f"{group}={name}"


def samples_of_another_model(phases: Phases) -> str | None:
    """Refuses a rollout that does not sample from the policy that is trained."""
    if RolloutTraits.read(phases.rollout).trains:
        return None
    rollout = choice("rollout", phases.rollout)
    return (
        f"{rollout} has no log-probabilities of the policy, so nothing can be trained with it: use "
        f"it for the evaluation, +rollout@evaluation.{rollout}, and choose another rollout."
    )


def distributions_that_the_trainer_does_not_score(phases: Phases) -> str | None:
    """Refuses to train on samples whose distribution depends on earlier tokens or on the task."""
    rollout = phases.rollout
    return rollout.why_untrained() if isinstance(rollout, Sampler) else None


def advantages_that_nothing_reads(phases: Phases) -> str | None:
    """Refuses an advantage if the update does not use advantages."""
    if UpdateTraits.read(phases.update).reads_advantages:
        return None
    advantage, update = phases.advantage, choice("update", phases.update)
    traits = AdvantageTraits.read(advantage)
    if not traits.uniform:
        return (
            f"{update} does not use advantages, so {choice('advantage', advantage)} would have no "
            "effect: choose advantage=constant."
        )
    if traits.value != 1.0 or traits.clip:
        return (
            f"{update} does not use advantages, so advantage.value and advantage.clip would have "
            "no effect: leave them out."
        )
    return None


def advantages_of_one_sign_in_pairs(phases: Phases) -> str | None:
    """Refuses an update that compares good and bad samples if all advantages have one sign."""
    if not UpdateTraits.read(phases.update).whole_groups:
        return None
    if not AdvantageTraits.read(phases.advantage).one_sign:
        return None
    return (
        f"{choice('update', phases.update)} compares the good samples of a group with the bad ones,"
        f" but {choice('advantage', phases.advantage)} marks none of them as bad: choose "
        "advantage=preference."
    )


def turns_in_single_responses(phases: Phases) -> str | None:
    """Refuses an advantage that differs by turns if every row has a single response."""
    if RolloutTraits.read(phases.rollout).many_turns:
        return None
    if not AdvantageTraits.read(phases.advantage).reads_turns:
        return None
    return (
        f"{choice('advantage', phases.advantage)} gives credit by turn, but "
        f"{choice('rollout', phases.rollout)} has a single turn: choose rollout=environment, or "
        "leave the options of turns out (advantage=grpo, reinforce or gae)."
    )


def divergence_in_a_reward_that_nothing_reads(phases: Phases) -> str | None:
    """Refuses a KL penalty in the reward if the advantage does not use the total reward."""
    if not (phases.kl.active and phases.kl.placement == "in_reward"):
        return None
    if AdvantageTraits.read(phases.advantage).reads_total:
        return None
    return (
        f"{choice('advantage', phases.advantage)} does not use the total reward, so "
        "kl.placement=in_reward would have no effect: set kl.placement=in_loss."
    )


def demonstrations_in_the_place_of_samples(phases: Phases) -> str | None:
    """Refuses demonstrations with phases that need samples of a policy, or different samples."""
    if RolloutTraits.read(phases.rollout).samples:
        return None
    rollout, advantage = choice("rollout", phases.rollout), choice("advantage", phases.advantage)
    if CorrectionTraits.read(phases.correction).active:
        return (
            f"{rollout} has no sampling policy to correct for: choose correction=none instead "
            f"of {choice('correction', phases.correction)}."
        )
    if phases.kl.active and phases.kl.placement == "in_reward":
        return (
            f"{rollout} has no log-probabilities of a sampling policy, but "
            "kl.placement=in_reward needs them: set kl.placement=in_loss."
        )
    if phases.kl.active and PenaltyTraits.read(phases.kl).importance_weight:
        return (
            f"{rollout} has no sampling policy, so kl.importance_weight=true would have no effect: "
            "leave it out."
        )
    old_policy = UpdateTraits.read(phases.update).old_policy
    if old_policy != UpdateTraits.read(type(phases.update)).old_policy:
        return (
            f"{rollout} has no sampling policy, so update.old_policy={old_policy} would have no "
            "effect: leave it out."
        )
    pairs = RolloutTraits.read(phases.rollout).pairs
    if UpdateTraits.read(phases.update).whole_groups and not pairs:
        return (
            f"{choice('update', phases.update)} compares the samples of a prompt, but {rollout} "
            "gives the same answer for all of them: choose update=sft."
        )
    needs = AdvantageTraits.read(phases.advantage).needs
    if AdvantageTraits.read(phases.advantage).compares_group and not pairs:
        reason = "compares the samples of a prompt, but"
    elif "greedy_rewards" in needs:
        reason = "compares samples with a greedy one, but"
    elif "teacher_logprobs" in needs:
        reason = "compares a teacher with the sampling policy, but"
    else:
        return None
    instead = "preference" if pairs else "constant"
    return f"{advantage} {reason} {rollout} has no samples of a policy: choose advantage={instead}."


def pairs_that_are_not_compared(phases: Phases) -> str | None:
    """Refuses preference pairs without an update that compares them, and their reward without them.

    The gradient of other updates would follow the preferred responses and flee from the rejected
    ones without a bound, since no policy sampled them.
    """
    rollout = choice("rollout", phases.rollout)
    if not RolloutTraits.read(phases.rollout).pairs:
        if RewardTraits.read(phases.reward).pairs:
            return (
                f"{choice('reward', phases.reward)} grades the pairs of a data set, but {rollout} "
                "has none: choose rollout=preferences, or another reward."
            )
        return None
    if UpdateTraits.read(phases.update).whole_groups:
        return None
    return (
        f"{rollout} has a preferred and a rejected response to each prompt, but "
        f"{choice('update', phases.update)} does not compare them: choose update=dpo, or "
        "rollout=demonstrations, which trains the preferred responses alone."
    )


def packed_rows_that_are_read_as_sequences(phases: Phases) -> str | None:
    """Refuses packed rows with phases that may read a row of the loss as one sequence."""
    if not UpdateTraits.read(phases.update).pack:
        return None
    active = {
        "correction": CorrectionTraits.read(phases.correction).active,
        "critic": phases.critic.active,
    }
    for group in active:
        if active[group]:
            phase = choice(group, phases.by_name[group])
            return (
                f"update.pack=true puts several sequences into a row, but {phase} "
                f"reads a row as one sequence: choose {group}=none, or leave update.pack out."
            )
    return None


def importance_that_counts_twice(phases: Phases) -> str | None:
    """Refuses a correction that weighs by the ratio which the loss contains already."""
    if UpdateTraits.read(phases.update).old_policy != "behaviour":
        return None
    if not CorrectionTraits.read(phases.correction).weighs:
        return None
    return (
        f"{choice('update', phases.update)} with old_policy=behaviour contains the whole "
        f"importance weight, so {choice('correction', phases.correction)} would weigh with it "
        "again: choose correction=none, or update.old_policy=proximal."
    )


def idle_options(phases: Phases) -> list[str]:
    """Returns a sentence for each changed option that the chosen phases do not read.

    They are no errors, because sweeps over phases and over the number of updates contain such runs.
    """
    own = [phase for phase in phases.by_name.values() if isinstance(phase, NamesIdleOptions)]
    named = [sentence for phase in own for sentence in phase.idle_options()]
    return [*named, *weights_of_normalised_terms(phases)]


def weights_of_normalised_terms(phases: Phases) -> Iterator[str]:
    """Yields a warning for each weight of a reward term that `advantage=gdpo` does not read."""
    if not isinstance(phases.advantage, GDPO):
        return
    reward = RewardTraits.read(phases.reward)
    tables = {"reward.terms": reward.terms or {}}
    for task, own in (reward.tasks or {}).items():
        tables[f"reward.tasks.{task}.terms"] = RewardTraits.read(own).terms or {}
    for table, terms in tables.items():
        for name, term in terms.items():
            weight = TermTraits.read(term).weight
            if weight != TermTraits.read(type(term)).weight:
                yield (
                    f"{table}.{name}.weight={weight:g} changes only the total reward, because "
                    f"advantage=gdpo normalises each term: set advantage.weights.{name}."
                )


def refuse_idle_roots(config: DictConfig, phases: Phases) -> None:
    """Refuses keys of the root that a phase or the optimizer leaves without effect.

    Raises:
      InputError: a group has one sample that an advantage compares with the others, or the last
        step of a learning rate is given that does not fall.
    """
    if config.group_size == 1 and AdvantageTraits.read(phases.advantage).compares_group:
        raise InputError(
            f"{choice('advantage', phases.advantage)} compares the samples of a prompt, so with "
            "group_size=1 every advantage would be 0: set group_size=2 or more, or choose "
            "advantage=reinforce."
        )
    optimizer = config.optimizer
    if optimizer.get("schedule") == "constant" and optimizer.total_steps != config.steps:
        raise InputError(
            f"optimizer.total_steps={optimizer.total_steps} has no effect with schedule=constant: "
            "choose optimizer.schedule=linear or cosine, or leave it out."
        )
