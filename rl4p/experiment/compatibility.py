"""Refuses combinations of phases in which one has no effect: no option is silently ignored.

Each rule is a function of the phases. It returns an error message, or None if the combination is
valid. A user-defined phase need not declare these properties; the default is the opposite value.

    rollout.samples            false: no policy sampled the tokens (`demonstrations`)
    rollout.trains             false: another model sampled the tokens, without log-probabilities
    advantage.reads_total      false: the total reward is not used
    advantage.compares_group   true: a sample whose group has equal rewards gets 0
    advantage.one_sign         true: no two advantages have different signs
    advantage.uniform          true: all advantages are equal
    update.reads_advantages    false: advantages are not used
    update.whole_groups        true: the loss compares samples of a group
    update.pack                true: several sequences share a row
    update.old_policy          behaviour: its ratio is the whole importance weight
    correction.active          false: every token has weight 1
    correction.weighs          true: its weights contain the ratio of trainer and sampler
"""

from typing import Any

from rl4p.errors import InputError
from rl4p.loop.phases import Phases


def refuse_what_cannot_act(phases: Phases) -> None:
    """Checks every rule.

    Raises:
      InputError: a rule is broken; the message is that of the first broken rule.
    """
    for rule in (
        samples_of_another_model,
        advantages_that_nothing_reads,
        advantages_of_one_sign_in_pairs,
        divergence_in_a_reward_that_nothing_reads,
        demonstrations_in_the_place_of_samples,
        packed_rows_that_are_read_as_sequences,
        importance_that_counts_twice,
    ):
        if sentence := rule(phases):
            raise InputError(sentence)


def choice(group: str, phase: Any) -> str:
    """Returns a phase as GROUP=NAME, with its module for NAME, or the class of a user's phase."""
    package, _, name = type(phase).__module__.rpartition(".")
    ours = package.startswith("rl4p.") and package.endswith(f".{group}")
    return f"{group}={name if ours else type(phase).__name__}"


def samples_of_another_model(phases: Phases) -> str | None:
    """Refuses a rollout that does not sample from the policy that is trained."""
    if getattr(phases.rollout, "trains", True):
        return None
    rollout = choice("rollout", phases.rollout)
    return (
        f"{rollout} has no log-probabilities of the policy, so nothing can be trained with it: use "
        f"it for the evaluation, +rollout@evaluation.{rollout}, and choose another rollout."
    )


def advantages_that_nothing_reads(phases: Phases) -> str | None:
    """Refuses an advantage if the update does not use advantages."""
    advantage, update = phases.advantage, choice("update", phases.update)
    if getattr(phases.update, "reads_advantages", True):
        return None
    if not getattr(advantage, "uniform", False):
        return (
            f"{update} does not use advantages, so {choice('advantage', advantage)} would have no "
            "effect: choose advantage=constant."
        )
    if getattr(advantage, "value", 1.0) != 1.0 or getattr(advantage, "clip", 0.0):
        return (
            f"{update} does not use advantages, so advantage.value and advantage.clip would have "
            "no effect: leave them out."
        )
    return None


def advantages_of_one_sign_in_pairs(phases: Phases) -> str | None:
    """Refuses an update that compares good and bad samples if all advantages have one sign."""
    if not getattr(phases.update, "whole_groups", False):
        return None
    if not getattr(phases.advantage, "one_sign", False):
        return None
    return (
        f"{choice('update', phases.update)} compares the good samples of a group with the bad ones,"
        f" but {choice('advantage', phases.advantage)} marks none of them as bad: choose "
        "advantage=preference."
    )


def divergence_in_a_reward_that_nothing_reads(phases: Phases) -> str | None:
    """Refuses a KL penalty in the reward if the advantage does not use the total reward."""
    if not (phases.kl.active and phases.kl.placement == "in_reward"):
        return None
    if getattr(phases.advantage, "reads_total", True):
        return None
    return (
        f"{choice('advantage', phases.advantage)} does not use the total reward, so "
        "kl.placement=in_reward would have no effect: set kl.placement=in_loss."
    )


def demonstrations_in_the_place_of_samples(phases: Phases) -> str | None:
    """Refuses demonstrations with phases that need samples of a policy, or different samples."""
    if getattr(phases.rollout, "samples", True):
        return None
    rollout, advantage = choice("rollout", phases.rollout), choice("advantage", phases.advantage)
    if getattr(phases.correction, "active", True):
        return (
            f"{rollout} has no sampling policy to correct for: choose correction=none instead "
            f"of {choice('correction', phases.correction)}."
        )
    if phases.kl.active and phases.kl.placement == "in_reward":
        return (
            f"{rollout} has no log-probabilities of a sampling policy, but "
            "kl.placement=in_reward needs them: set kl.placement=in_loss."
        )
    if phases.kl.active and getattr(phases.kl, "importance_weight", False):
        return (
            f"{rollout} has no sampling policy, so kl.importance_weight=true would have no effect: "
            "leave it out."
        )
    old_policy = getattr(phases.update, "old_policy", None)
    if old_policy != getattr(type(phases.update), "old_policy", None):
        return (
            f"{rollout} has no sampling policy, so update.old_policy={old_policy} would have no "
            "effect: leave it out."
        )
    if getattr(phases.update, "whole_groups", False):
        return (
            f"{choice('update', phases.update)} compares the samples of a prompt, but {rollout} "
            "gives the same answer for all of them: choose update=sft."
        )
    needs = getattr(phases.advantage, "needs", frozenset())
    if getattr(phases.advantage, "compares_group", False):
        reason = "compares the samples of a prompt, but"
    elif "greedy_rewards" in needs:
        reason = "compares samples with a greedy one, but"
    elif "teacher_logprobs" in needs:
        reason = "compares a teacher with the sampling policy, but"
    else:
        return None
    return f"{advantage} {reason} {rollout} has no samples of a policy: choose advantage=constant."


def packed_rows_that_are_read_as_sequences(phases: Phases) -> str | None:
    """Refuses packed rows with phases that may read a row of the loss as one sequence."""
    if not getattr(phases.update, "pack", False):
        return None
    for group, phase in (("correction", phases.correction), ("critic", phases.critic)):
        if getattr(phase, "active", True):
            return (
                f"update.pack=true puts several sequences into a row, but {choice(group, phase)} "
                f"reads a row as one sequence: choose {group}=none, or leave update.pack out."
            )
    return None


def importance_that_counts_twice(phases: Phases) -> str | None:
    """Refuses a correction that weighs by the ratio which the loss contains already."""
    if getattr(phases.update, "old_policy", None) != "behaviour":
        return None
    if not getattr(phases.correction, "weighs", False):
        return None
    return (
        f"{choice('update', phases.update)} with old_policy=behaviour contains the whole "
        f"importance weight, so {choice('correction', phases.correction)} would weigh with it "
        "again: choose correction=none, or update.old_policy=proximal."
    )
