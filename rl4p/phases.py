"""The four phases of a run, and what the loop may ask of them as a whole."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rl4p.errors import InputError
from rl4p.protocols import Advantage, Reward, Rollout, Update

SCORES = frozenset({"proximal_logprobs"})  # what a phase may ask for in `needs`


@dataclass(frozen=True, kw_only=True)
class Phases:
    """Rollout, reward, advantage and update.

    Attributes:
      checks: by phase name, called with the phase's result and arguments (`debug.check_batches`).
    """

    rollout: Rollout
    reward: Reward
    advantage: Advantage
    update: Update
    checks: dict[str, Callable[..., None]] = field(default_factory=dict)

    def items(self) -> list[tuple[str, Any]]:
        return [
            (name, getattr(self, name)) for name in ("rollout", "reward", "advantage", "update")
        ]

    def needs(self) -> frozenset[str]:
        """The union of what the phases need beyond their arguments."""
        needs = frozenset().union(*(getattr(phase, "needs", ()) for _, phase in self.items()))
        if needs - SCORES:
            raise InputError(
                f"A phase needs {sorted(needs - SCORES)}; the loop can compute {sorted(SCORES)}."
            )
        return needs

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
