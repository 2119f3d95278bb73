"""Sentences about schedules that a resumed run puts on another curve."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rl4p.learner.optimizer import OptimizerOptions
from rl4p.protocols.phases import Optimizer, Rollout
from rl4p.protocols.traits import RolloutTraits

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
      step: the number of finished steps.
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
