"""Refuses phases that cannot act together: no option is accepted and then ignored.

Each rule is a function of the phases that returns a sentence, or None where all is well. A phase of
the user's own that does not declare a property below is taken to be an ordinary one.

    rollout.samples            false: no policy drew the tokens (`demonstrations`)
    advantage.reads_total      false: the total reward is not looked at
    advantage.compares_group   true: samples with the rewards of their siblings get 0
    advantage.one_sign         true: no two advantages have different signs
    advantage.uniform          true: all advantages are the same
    update.reads_advantages    false: advantages are not looked at
    update.whole_groups        true: the loss compares samples of a group
    correction.active          false: every token weighs 1
"""

from typing import Any

from rl4p.errors import InputError
from rl4p.loop.phases import Phases


def refuse_what_cannot_act(phases: Phases) -> None:
    """Checks every rule.

    Raises:
      InputError: with the sentence of the first rule that is broken.
    """
    for rule in (
        advantages_that_nothing_reads,
        advantages_of_one_sign_in_pairs,
        divergence_in_a_reward_that_nothing_reads,
        demonstrations_in_the_place_of_samples,
    ):
        if sentence := rule(phases):
            raise InputError(sentence)


def choice(group: str, phase: Any) -> str:
    """Returns how the command line names a phase of this package: its module is named so."""
    package, _, name = type(phase).__module__.rpartition(".")
    ours = package.startswith("rl4p.") and package.endswith(f".{group}")
    return f"{group}={name if ours else type(phase).__name__}"


def advantages_that_nothing_reads(phases: Phases) -> str | None:
    """Refuses an advantage beside an update that learns from all samples alike."""
    advantage, update = phases.advantage, choice("update", phases.update)
    if getattr(phases.update, "reads_advantages", True):
        return None
    if not getattr(advantage, "uniform", False):
        return (
            f"{update} does not look at advantages, so {choice('advantage', advantage)} could not "
            "act: choose advantage=constant with it."
        )
    if getattr(advantage, "value", 1.0) != 1.0 or getattr(advantage, "clip", 0.0):
        return (
            f"{update} does not look at advantages, so advantage.value and advantage.clip could "
            "not act: leave them out."
        )
    return None


def advantages_of_one_sign_in_pairs(phases: Phases) -> str | None:
    """Refuses an update that needs good and bad samples beside an advantage without both."""
    if not getattr(phases.update, "whole_groups", False):
        return None
    if not getattr(phases.advantage, "one_sign", False):
        return None
    return (
        f"{choice('update', phases.update)} compares the good samples of a group with the bad ones,"
        f" and {choice('advantage', phases.advantage)} calls none of them bad: choose "
        "advantage=preference."
    )


def divergence_in_a_reward_that_nothing_reads(phases: Phases) -> str | None:
    """Refuses a penalty taken from rewards that the advantage does not look at."""
    if not (phases.kl.active and phases.kl.placement == "in_reward"):
        return None
    if getattr(phases.advantage, "reads_total", True):
        return None
    return (
        f"{choice('advantage', phases.advantage)} does not look at the total reward, so "
        "kl.placement=in_reward could not act: say kl.placement=in_loss."
    )


def demonstrations_in_the_place_of_samples(phases: Phases) -> str | None:
    """Refuses what needs samples of a policy, or samples that differ, beside demonstrations."""
    if getattr(phases.rollout, "samples", True):
        return None
    rollout, advantage = choice("rollout", phases.rollout), choice("advantage", phases.advantage)
    if getattr(phases.correction, "active", True):
        return (
            f"{rollout} has no sampling policy to correct for: choose correction=none in the place "
            f"of {choice('correction', phases.correction)}."
        )
    if phases.kl.active and phases.kl.placement == "in_reward":
        return (
            f"{rollout} has no log-probabilities of a sampling policy, which "
            "kl.placement=in_reward is measured with: say kl.placement=in_loss."
        )
    if phases.kl.active and getattr(phases.kl, "importance_weight", False):
        return (
            f"{rollout} has no sampling policy, so kl.importance_weight=true could not act: leave "
            "it out."
        )
    if getattr(phases.update, "whole_groups", False):
        return (
            f"{choice('update', phases.update)} compares the samples of a prompt, and {rollout} "
            "gives the same answer for each: choose update=sft."
        )
    needs = getattr(phases.advantage, "needs", frozenset())
    if getattr(phases.advantage, "compares_group", False):
        reason = "compares the samples of a prompt, and"
    elif "greedy_rewards" in needs:
        reason = "compares samples with a greedy one, and"
    elif "teacher_logprobs" in needs:
        reason = "compares a teacher with the policy that sampled, and"
    else:
        return None
    return f"{advantage} {reason} {rollout} has no samples of a policy: choose advantage=constant."
