"""Options of a configuration that cannot act beside the others: refused, or named at the start.

`compatibility.py` compares phases with one another. The rules here also read options that are no
part of a phase.
"""

from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

from omegaconf import DictConfig

from rl4p.advantage.gdpo import GDPO
from rl4p.base.errors import InputError
from rl4p.loop.phases import Phases
from rl4p.protocols.traits import AdvantageTraits, RewardTraits, TermTraits, UpdateTraits
from rl4p.runs.compatibility import choice


def refuse_idle_options(config: DictConfig, phases: Phases) -> None:
    """Checks every rule.

    Raises:
      InputError: an option would have no effect; the message is the sentence of the first rule.
    """
    for rule in (
        groups_of_one_sample,
        average_that_is_not_kept,
        end_of_a_constant_schedule,
    ):
        if sentence := rule(config, phases):
            raise InputError(sentence)


def idle_options(phases: Phases) -> list[str]:
    """Returns a sentence for each changed option that the chosen phases do not read.

    They are no errors, because sweeps over phases and over the number of updates contain such runs.
    """
    return [*ratios_of_one_update(phases), *weights_of_normalised_terms(phases)]


def ratios_of_one_update(phases: Phases) -> Iterator[str]:
    """Yields a sentence for each option of a ratio that is always 1."""
    update = phases.update
    traits = UpdateTraits.read(update)
    if update.epochs * update.minibatches > 1 or traits.old_policy == "behaviour":
        return
    for name in changed(update):
        if name in traits.ratio_options:
            yield (
                f"update.{name}={getattr(update, name)} has no effect, because a step has one "
                "update, in which the ratio of the loss is 1: set update.minibatches or "
                "update.epochs above 1, or leave it out."
            )


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


def changed(options: Any) -> list[str]:
    """Returns the names of the options of a dataclass that differ from their defaults."""
    return [
        each.name
        for each in fields(options)
        if each.default is not MISSING and getattr(options, each.name) != each.default
    ]


def groups_of_one_sample(config: DictConfig, phases: Phases) -> str | None:
    """Refuses groups of one sample if the advantage compares the samples of a group."""
    if config.group_size > 1 or not AdvantageTraits.read(phases.advantage).compares_group:
        return None
    return (
        f"{choice('advantage', phases.advantage)} compares the samples of a prompt, so with "
        "group_size=1 every advantage would be 0: set group_size=2 or more, or choose "
        "advantage=reinforce."
    )


def average_that_is_not_kept(config: DictConfig, phases: Phases) -> str | None:
    """Refuses an option of the moving average of the parameters if none is kept."""
    if config.ema.decay or config.ema.use_for_eval:
        return None
    return (
        "ema.use_for_eval=false has no effect, because ema.decay=0 keeps no average: set ema.decay,"
        " or leave it out."
    )


def end_of_a_constant_schedule(config: DictConfig, phases: Phases) -> str | None:
    """Refuses the last step of a learning rate that does not fall."""
    optimizer = config.optimizer
    if optimizer.get("schedule") != "constant" or optimizer.total_steps == config.steps:
        return None
    return (
        f"optimizer.total_steps={optimizer.total_steps} has no effect with schedule=constant: "
        "choose optimizer.schedule=linear or cosine, or leave it out."
    )
