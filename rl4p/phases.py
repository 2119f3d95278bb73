"""The phases of a run, and what the loop may ask of them as a whole."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rl4p.errors import InputError
from rl4p.protocols import (
    KL,
    Advantage,
    Correction,
    Entropy,
    Objective,
    Reward,
    Rollout,
    Update,
)

# What a phase may ask for in `needs`; `scoring.py` computes it.
SCORES = frozenset(
    {
        "answer_clusters",
        "collision",
        "entropy",
        "greedy_rewards",
        "proximal_logprobs",
        "reference_logprobs",
        "task_ids",
        "teacher_logprobs",
        "values",
    }
)


@dataclass(frozen=True, kw_only=True)
class Phases:
    """Rollout, reward, advantage and update, and what joins the update's loss.

    Attributes:
      checks: by phase name, called with the phase's result and arguments (`debug.check_batches`).
    """

    rollout: Rollout
    reward: Reward
    advantage: Advantage
    update: Update
    correction: Correction
    kl: KL
    entropy: Entropy
    critic: Any  # `protocols.Critic`
    checks: dict[str, Callable[..., None]] = field(default_factory=dict)

    def items(self) -> list[tuple[str, Any]]:
        names = ("rollout", "reward", "advantage", "update", "kl", "entropy")
        return [(name, getattr(self, name)) for name in names]

    def needs(self) -> frozenset[str]:
        """The union of what the phases need beyond their arguments."""
        needs = frozenset().union(*(getattr(phase, "needs", ()) for _, phase in self.items()))
        if needs - SCORES:
            raise InputError(
                f"A phase needs {sorted(needs - SCORES)}; the loop can compute {sorted(SCORES)}."
            )
        if "values" in needs and not self.critic.active:
            raise InputError("The advantage needs values: choose critic=shared or critic=apart.")
        if self.critic.active and not hasattr(self.advantage, "returns"):
            raise InputError("A critic learns the returns of advantage=gae, and of no other.")
        return needs

    def objective(self, group_size: int) -> Objective:
        """What the gradient step descends; it is static, and compiled in."""
        return Objective(
            update=self.update,
            correction=self.correction,
            kl=self.kl,
            entropy=self.entropy,
            critic=self.critic,
            rows_together=group_size if getattr(self.update, "whole_groups", False) else 1,
        )

    def initial_memory(self) -> dict[str, Any]:
        """The memory of each phase that has one."""
        if hasattr(self.update, "initial_state"):
            raise InputError("An update keeps no memory: its microbatches are summed in any order.")
        return {
            name: phase.initial_state()
            for name, phase in self.items()
            if hasattr(phase, "initial_state")
        }

    def call(
        self, name: str, memory: dict[str, Any], *args: Any, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Calls a phase, with its memory where it has one: (result, memory of all phases)."""
        phase = getattr(self, name)
        if name in memory:
            result, state = phase(*args, **kwargs, memory=memory[name])
            memory = memory | {name: state}
        else:
            result = phase(*args, **kwargs)
        if name in self.checks:
            self.checks[name](result, *args, **kwargs)
        return result, memory

    def coefficients(self, memory: dict[str, Any]) -> dict[str, Any]:
        """The weights of the divergence and of the entropy in this step."""
        return {
            "kl": self.kl.coefficient(memory.get("kl", {})),
            "entropy": self.entropy.coefficient(memory.get("entropy", {})),
        }

    def adapt(self, memory: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any]:
        """The memory after a step that measured these."""
        return memory | {
            name: getattr(self, name).next_state(memory[name], metrics[f"update/{name}"])
            for name in ("kl", "entropy")
            if name in memory
        }
