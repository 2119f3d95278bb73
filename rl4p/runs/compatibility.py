"""Refuses combinations of parts in which an option has no effect: no option is silently ignored.

Only what concerns two parts is here. A bound of one option is in its annotation, and what concerns
the options of one class is in that class: `__post_init__` refuses them, `idle_options` names them.

A rule is a function of the phases. It returns an error message, or None if the combination is
valid. The rules read the traits of the phases (`protocols/traits.py`).
"""

import re
from typing import Any

from omegaconf import DictConfig

from rl4p.advantage.gdpo import GDPO
from rl4p.base.errors import InputError
from rl4p.base.types import Sampling
from rl4p.distributed.mesh import Mesh
from rl4p.loop.phases import Phases
from rl4p.model.policy import Policy
from rl4p.protocols.phases import Centers, NamesIdleOptions, Optimizer
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
    """Checks every rule about two phases."""
    for rule in (
        samples_that_train_nothing,
        advantages_that_the_update_does_not_use,
        rewards_that_the_advantage_does_not_read,
        demonstrations_in_the_place_of_samples,
        pairs_that_are_not_compared,
        corrections_beside_the_update,
        terms_beside_a_score,
        observations_without_an_environment,
        tokens_that_center_nothing,
    ):
        if sentence := rule(phases):
            raise InputError(sentence)


def refuse_a_gap_that_is_never_measured(rollout: Any, collector: Any) -> None:
    """Refuses a limit of the sampler's gap if no token has the weights of its step."""
    limit = RolloutTraits.read(rollout).max_logprob_gap
    if limit not in (None, "auto") and not CollectorTraits.read(collector).fresh:
        raise InputError(
            f"rollout.max_logprob_gap={limit:g} would have no effect after the first step, because "
            f"it compares the tokens that were drawn with the weights of the step, and "
            f"{choice('collector', collector)} trains tokens of earlier weights alone: set "
            "rollout.max_logprob_gap=null."
        )


def refuse_top_p_with_exact_sums(rollout: Any, policy: Policy) -> None:
    """Refuses a cut of the distribution that depends on rounding, if no digit may.

    Raises:
      InputError: the sampler and the trainer could keep different tokens.
    """
    if policy.decoder.exact and rollout.sampling.top_p < 1:
        raise InputError(
            f"rollout.top_p={rollout.sampling.top_p:g} keeps tokens by a sum, whose rounding "
            "model.exact=true does not fix: set rollout.top_p=1, or model.exact=false."
        )


def refuse_offloading_on_a_cpu(config: DictConfig, mesh: Mesh, optimizer: Optimizer) -> None:
    """Refuses to keep arrays in the memory of the host if the devices have no other."""
    of_optimizer = OptimizerTraits.read(optimizer).offload
    options = {"optimizer": of_optimizer, "reference": config.reference.offload}
    for name, offload in options.items():
        if offload and mesh.platform == "cpu":
            raise InputError(
                f"{name}.offload=true has no effect on a CPU, whose devices use the memory of the "
                "host: leave it out."
            )


def refuse_idle_routers(phases: Phases, policy: Policy) -> None:
    """Refuses a loss of routers, and steps of their biases, that the trained model does not have.

    Raises:
      InputError: the option would have no effect.
    """
    traits, config = UpdateTraits.read(phases.update), policy.decoder.config
    loss, rate = traits.router_loss, traits.router_bias_rate
    corrected = config.experts and config.router.corrected
    for option, idle, reason in (
        (f"router_loss={loss:g}", loss and not config.experts, "the model has no experts"),
        (
            f"router_bias_rate={rate:g}",
            rate and not corrected,
            "the model has no experts with a bias for their choice",
        ),
        (f"router_bias_rate={rate:g}", rate and policy.frozen, "only adapters are trained"),
    ):
        if idle:
            raise InputError(f"update.{option} has no effect, because {reason}: leave it out.")


def refuse_score_head_mismatch(phases: Phases, policy: Policy) -> None:
    """Refuses an update that trains a score head, if the model has none.

    Refuses any other update, if the model has one.
    """
    trains, update = UpdateTraits.read(phases.update).trains_score, choice("update", phases.update)
    if trains and not policy.decoder.config.labels:
        raise InputError(
            f"{update} trains the score of a model, but the model has none: set "
            "model.score_head=true."
        )
    if policy.decoder.config.labels and not trains:
        raise InputError(
            f"The model has a score head and generates no tokens, so {update} cannot train it: "
            "choose update=reward_model, or leave model.score_head out."
        )


def refuse_missing_or_idle_teachers(config: DictConfig, phases: Phases) -> None:
    """Refuses a teacher that no phase compares with, and such a phase without a teacher."""
    if phases.taught is None and config.teacher is not None:
        raise InputError(
            f"{choice('advantage', phases.advantage)} does not use a teacher: choose "
            "advantage=distill, or update=gkd with advantage=constant, or leave the teacher out."
        )
    if phases.taught is not None and config.teacher is None:
        raise InputError(
            f"{choice(phases.taught, phases.by_name[phases.taught])} needs a teacher: add "
            "+model@teacher=pretrained teacher.path=FOLDER."
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


def samples_that_train_nothing(phases: Phases) -> str | None:
    """Returns an error if the samples of the rollout cannot be trained on, otherwise None.

    Another model draws them, or their distribution is not the one that the trainer computes.
    """
    if RolloutTraits.read(phases.rollout).trains:
        return phases.rollout.why_untrained() if isinstance(phases.rollout, Sampler) else None
    rollout = choice("rollout", phases.rollout)
    return (
        f"{rollout} has no log-probabilities of the policy, so nothing can be trained with it: use "
        f"it for the evaluation, +rollout@evaluation.{rollout}, and choose another rollout."
    )


def advantages_that_the_update_does_not_use(phases: Phases) -> str | None:
    """Refuses advantages if nothing reads them, and those of one sign if the update needs both."""
    traits, compared = AdvantageTraits.read(phases.advantage), UpdateTraits.read(phases.update)
    if not compared.reads_advantages:
        without = f"{choice('update', phases.update)} does not use advantages, so"
        if not traits.uniform:
            return (
                f"{without} {choice('advantage', phases.advantage)} would have no effect: choose "
                "advantage=constant."
            )
        if traits.value != 1.0 or traits.clip:
            return (
                f"{without} advantage.value and advantage.clip would have no effect: leave them "
                "out."
            )
    if compared.whole_groups and traits.one_sign:
        return (
            f"{choice('update', phases.update)} compares the good samples of a group with the bad "
            f"ones, but {choice('advantage', phases.advantage)} marks none of them as bad: choose "
            "advantage=preference."
        )
    return None


def rewards_that_the_advantage_does_not_read(phases: Phases) -> str | None:
    """Refuses credit by turn or role without them, and a KL penalty in an unread total reward."""
    traits = AdvantageTraits.read(phases.advantage)
    if "turn_roles" in traits.needs and not RolloutTraits.read(phases.rollout).roles:
        return (
            f"{choice('advantage', phases.advantage)} has a baseline for each role, but "
            f"{choice('rollout', phases.rollout)} has no roles: leave advantage.max_roles out, or "
            "name the roles (of Gymnasium and textarena, rollout.environment.roles)."
        )
    if traits.reads_turns and not RolloutTraits.read(phases.rollout).many_turns:
        return (
            f"{choice('advantage', phases.advantage)} gives credit by turn, but "
            f"{choice('rollout', phases.rollout)} has a single turn: choose rollout=environment, "
            "or leave the options of turns out (advantage=grpo, reinforce or gae)."
        )
    if phases.kl.active and phases.kl.placement == "in_reward" and not traits.reads_total:
        return (
            f"{choice('advantage', phases.advantage)} does not use the total reward, so "
            "kl.placement=in_reward would have no effect: set kl.placement=in_loss."
        )
    return None


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
    penalty = PenaltyTraits.read(phases.kl)
    for option, chosen in (
        ("importance_weight=true", penalty.importance_weight),
        ("against=behaviour", penalty.against == "behaviour"),
    ):
        if phases.kl.active and chosen:
            return (
                f"{rollout} has no sampling policy, so kl.{option} would have no effect: leave it "
                "out."
            )
    old_policy = UpdateTraits.read(phases.update).old_policy
    if old_policy != UpdateTraits.read(type(phases.update)).old_policy:
        return (
            f"{rollout} has no sampling policy, so update.old_policy={old_policy} would have no "
            "effect: leave it out."
        )
    pairs = RolloutTraits.read(phases.rollout).pairs
    signs = UpdateTraits.read(phases.update).reads_signs
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
    instead = "preference" if pairs else "reinforce" if signs else "constant"
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
        if RewardTraits.read(phases.reward).labels and RolloutTraits.read(phases.rollout).samples:
            return (
                f"{choice('reward', phases.reward)} grades the responses of a data set, but "
                f"{rollout} samples others: choose rollout=demonstrations, or another reward."
            )
        return None
    update = UpdateTraits.read(phases.update)
    if update.whole_groups or update.reads_signs:
        return None
    return (
        f"{rollout} has a preferred and a rejected response to each prompt, but "
        f"{choice('update', phases.update)} does not compare them: choose update=dpo or kto, or "
        "rollout=demonstrations, which trains the preferred responses alone."
    )


def corrections_beside_the_update(phases: Phases) -> str | None:
    """Refuses packed rows read as one sequence, a weight twice, and a mask that drops nothing."""
    update, correction = UpdateTraits.read(phases.update), CorrectionTraits.read(phases.correction)
    active = {"correction": correction.active, "critic": phases.critic.active}
    if update.pack and (group := next((name for name, is_on in active.items() if is_on), None)):
        return (
            "update.pack=true puts several sequences into a row, but "
            f"{choice(group, phases.by_name[group])} reads a row as one sequence: choose "
            f"{group}=none, or leave update.pack out."
        )
    if update.old_policy == "behaviour" and correction.weighs:
        return (
            f"{choice('update', phases.update)} with old_policy=behaviour contains the whole "
            f"importance weight, so {choice('correction', phases.correction)} would weigh with it "
            "again: choose correction=none, or update.old_policy=proximal."
        )
    if not correction.reads_advantages:
        return None
    mask = f"{choice('correction', phases.correction)} drops tokens with negative advantages, but"
    if not update.reads_advantages:
        return (
            f"{mask} {choice('update', phases.update)} does not use advantages: choose another "
            "correction."
        )
    advantages = AdvantageTraits.read(phases.advantage)
    if advantages.one_sign and advantages.value >= 0:
        return (
            f"{mask} {choice('advantage', phases.advantage)} has none: choose another correction, "
            "or another advantage."
        )
    return None


def observations_without_an_environment(phases: Phases) -> str | None:
    """Refuses the likelihood of observations if rows have a single turn."""
    weight = UpdateTraits.read(phases.update).observation_loss
    if not weight or RolloutTraits.read(phases.rollout).many_turns:
        return None
    return (
        f"update.observation_loss={weight:g} has no effect, because "
        f"{choice('rollout', phases.rollout)} has no environment that answers: choose "
        "rollout=environment, or leave it out."
    )


def tokens_that_center_nothing(phases: Phases) -> str | None:
    """Refuses centered scores without the sampler's most probable tokens, and the reverse."""
    update, rollout = choice("update", phases.update), choice("rollout", phases.rollout)
    count = RolloutTraits.read(phases.rollout).alternatives
    centers = isinstance(phases.update, Centers)
    if count and not centers:
        return (
            f"rollout.alternatives={count} has no effect, because {update} does not center scores: "
            "choose update=score_centering, or leave it out."
        )
    if centers and not count:
        return (
            f"{update} centers scores with the sampler's most probable tokens, but {rollout} "
            "records none: set rollout.alternatives=128 of rollout=continuous."
        )
    cuts = ("top_k", "top_p", "min_p")
    own, plain = phases.rollout.sampling, Sampling()
    if centers and (cut := next((x for x in cuts if getattr(own, x) != getattr(plain, x)), None)):
        return (
            f"{update} compares with the sampler's whole distribution, which rollout.{cut} cuts: "
            "leave it out."
        )
    return None


def terms_beside_a_score(phases: Phases) -> str | None:
    """Refuses samples and terms of log-probabilities for a model with a score in their place."""
    if not UpdateTraits.read(phases.update).trains_score:
        return None
    update = choice("update", phases.update)
    if RolloutTraits.read(phases.rollout).samples:
        return (
            f"{update} trains a model that generates no tokens, but "
            f"{choice('rollout', phases.rollout)} samples: choose rollout=preferences or "
            "demonstrations."
        )
    active = {"kl": phases.kl.active, "critic": phases.critic.active}
    active["entropy"] = phases.entropy.active or phases.entropy.selects
    if weight := UpdateTraits.read(phases.update).likelihood_loss:
        return (
            f"{update} trains a model without log-probabilities, so "
            f"update.likelihood_loss={weight:g} would have no effect: leave it out."
        )
    if group := next((name for name, is_on in active.items() if is_on), None):
        return (
            f"{update} trains a model without log-probabilities, so "
            f"{choice(group, phases.by_name[group])} would have no effect: choose {group}=none."
        )
    return None


def idle_options(phases: Phases) -> list[str]:
    """Returns a sentence for each changed option that the chosen phases do not read.

    They are no errors, because sweeps over phases and over the number of updates contain such runs.
    """
    own = [phase for phase in phases.by_name.values() if isinstance(phase, NamesIdleOptions)]
    named = [sentence for phase in own for sentence in phase.idle_options()]
    if not isinstance(phases.advantage, GDPO):  # which does not read the weights of reward terms
        return named
    reward = RewardTraits.read(phases.reward)
    tables = {"reward.terms": reward.terms or {}}
    for task, of_task in (reward.tasks or {}).items():
        tables[f"reward.tasks.{task}.terms"] = RewardTraits.read(of_task).terms or {}
    return named + [
        f"{table}.{name}.weight={weight:g} changes only the total reward, because "
        f"advantage=gdpo normalises each term: set advantage.weights.{name}."
        for table, terms in tables.items()
        for name, term in terms.items()
        if (weight := TermTraits.read(term).weight) != TermTraits.read(type(term)).weight
    ]


def refuse_idle_roots(config: DictConfig, phases: Phases) -> None:
    """Refuses keys of the root that a phase or the optimizer leaves without effect."""
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
