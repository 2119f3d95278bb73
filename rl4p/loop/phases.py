"""The phases of a run as one object, and their joint properties."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from threading import Lock
from typing import Any

from rl4p.errors import InputError
from rl4p.learner.objective import Objective
from rl4p.protocols.phases import (
    KL,
    Advantage,
    Correction,
    Critic,
    Entropy,
    Estimator,
    Remembers,
    Reward,
    Rollout,
    Score,
    TeachesCritic,
    Update,
)
from rl4p.types import Array

# The scores that phases may request in `needs`. `scoring.py` computes them after the rewards.
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

# The phases that may request any score, and the only score that each other phase may request.
GIVEN_ALL = ("advantage", "update", "correction")
GIVEN_ONE = {"kl": "reference_logprobs", "entropy": "entropy"}
NOT_PHASES = ("scores", "checks", "grading")
KEEP_MEMORY = ("rollout", "reward", "advantage", "kl", "entropy")


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The phases of a run: rollout, reward, advantage, update and the other parts of the loss.

    Attributes:
      scores: user-defined scores by name (`protocols.Score`), which phases may request.
      checks: functions by phase name, called with the result and the arguments of the phase. The
        check of an update is called with its batch (`debug.check_batches`).
      grading: the lock that a call of the reward holds.
    """

    rollout: Rollout
    reward: Reward
    advantage: Advantage
    update: Update
    correction: Correction
    kl: KL
    entropy: Entropy
    critic: Critic
    scores: dict[str, Score] = field(default_factory=dict)
    checks: dict[str, Callable[..., None]] = field(default_factory=dict)
    grading: Any = field(default_factory=Lock, repr=False, compare=False)

    def items(self) -> list[tuple[str, Any]]:
        """Returns the phases by name."""
        names = (each.name for each in fields(self))
        return [(name, getattr(self, name)) for name in names if name not in NOT_PHASES]

    def needs(self) -> frozenset[str]:
        """Returns the names of all scores that the phases request.

        Raises:
          InputError: a phase requests an unknown score or one that it would not receive; a user's
            score has a name of `SCORES` or is not requested; or critic and advantage do not match.
        """
        needs: frozenset[str] = frozenset()
        if twice := sorted(SCORES & self.scores.keys()):
            raise InputError(f"scores.{twice[0]} is the name of a built-in score: choose another.")
        known = SCORES | self.scores.keys()
        for name, phase in self.items():
            asked = frozenset(getattr(phase, "needs", ()))
            if asked - known:
                raise InputError(
                    f"{name} needs {sorted(asked - known)}, but the loop computes {sorted(known)}: "
                    "add other scores as scores.NAME."
                )
            given = known if name in GIVEN_ALL else frozenset({GIVEN_ONE.get(name)})
            if asked - given:
                what = f"only ['{GIVEN_ONE[name]}']" if name in GIVEN_ONE else "no scores"
                raise InputError(
                    f"{name} needs {sorted(asked - given)}, but the loop passes {what} to this "
                    "phase."
                )
            needs |= asked
        if unused := sorted(self.scores.keys() - needs):
            raise InputError(f"No phase needs scores.{unused[0]}: leave it out.")
        if "values" in needs and not self.critic.active:
            raise InputError("The advantage needs values: choose critic=shared or critic=separate.")
        if self.critic.active and not isinstance(self.advantage, TeachesCritic):
            raise InputError("A critic needs advantage=gae: choose it, or choose critic=none.")
        return needs

    @property
    def estimator(self) -> Estimator | None:
        """Returns the critic if it is active, otherwise None.

        Raises:
          InputError: the critic lacks a method of `Estimator`.
        """
        if not self.critic.active:
            return None
        if not isinstance(self.critic, Estimator):
            raise InputError("critic is active, so it must have the methods init, values and loss.")
        return self.critic

    @property
    def values(self) -> Callable[..., Array] | None:
        """Returns the method `values` of the critic if it is active, otherwise None."""
        return None if self.estimator is None else self.estimator.values

    def objective(self, group_size: int) -> Objective:
        """Returns the objective of the gradient step, a static argument of its compilation."""
        return Objective(
            update=self.update,
            correction=self.correction,
            kl=self.kl,
            entropy=self.entropy,
            critic=self.critic,
            rows_together=group_size if getattr(self.update, "whole_groups", False) else 1,
        )

    def initial_memory(self) -> dict[str, Any]:
        """Returns the initial memory of each phase that has one."""
        keeping = [(name, phase) for name, phase in self.items() if isinstance(phase, Remembers)]
        for name, _ in keeping:
            if name not in KEEP_MEMORY:
                raise InputError(
                    f"{name} has an initial_state but cannot keep memory: it runs on microbatches, "
                    "which are summed in any order."
                )
        return {name: phase.initial_state() for name, phase in keeping}

    def call(
        self, name: str, memory: dict[str, Any], *args: Any, **kwargs: Any
    ) -> tuple[Any, dict[str, Any]]:
        """Calls a phase, with its memory if it has one; returns (result, memory of all phases).

        Only one thread at a time calls the reward, so that the deadline of a term does not count
        the time in which it grades for another thread.
        """
        phase = getattr(self, name)
        with self.grading if name == "reward" else nullcontext():
            if name in memory:
                result, state = phase(*args, **kwargs, memory=memory[name])
                memory = memory | {name: state}
            else:
                result = phase(*args, **kwargs)
        self.check(name, result, *args, **kwargs)
        return result, memory

    def check(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Checks the result of a phase, or the batch of an update, if checks are enabled."""
        if name in self.checks:
            self.checks[name](*args, **kwargs)

    def close(self) -> None:
        """Ends what rollout and reward have opened, such as processes and connections."""
        for phase in (self.rollout, self.reward):
            if hasattr(phase, "close"):
                phase.close()  # pyright: ignore[reportAttributeAccessIssue]

    def temperature(self, step: int) -> dict[str, float]:
        """Returns the temperature of a step as `temperature` if it changes over the run, or {}."""
        at = getattr(self.rollout, "temperature_at", lambda step: None)
        return {} if (found := at(step)) is None else {"temperature": found}

    def coefficients(self, memory: dict[str, Any], step: int) -> dict[str, Any]:
        """Returns the coefficients of a step's loss.

        They are the weights of the KL penalty and of the entropy bonus, and the temperature if it
        changes over the run.
        """
        return {
            "kl": self.kl.coefficient(memory.get("kl", {})),
            "entropy": self.entropy.coefficient(memory.get("entropy", {})),
        } | self.temperature(step)

    def adapt(self, memory: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any]:
        """Returns the memory with the KL and entropy coefficients adapted to a step's metrics."""
        return memory | {
            name: getattr(self, name).next_state(memory[name], metrics[f"update/{name}"])
            for name in ("kl", "entropy")
            if name in memory
        }
