"""The phases of a run as one object, and the calls of the reward and the advantage phase.

In several processes each grades a share of the groups and receives all grades. The call of the
advantage applies the options of the phase, its scores and a KL penalty in the reward.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from threading import Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl4p.base.errors import InputError
from rl4p.base.types import Array, Episode, Params, Prompt, Rewards, Trajectories
from rl4p.distributed.counting import counted
from rl4p.distributed.processes import gathered_rows, share, to_host
from rl4p.learner.advantage_options import clipped, drop_truncated
from rl4p.learner.logprobs import ScoreOptions
from rl4p.learner.masking import loss_mask
from rl4p.learner.objective import Objective
from rl4p.learner.phase_results import check_array, check_names, check_pair, described, refuse
from rl4p.model.decoder import Decoder
from rl4p.model.policy import Policy
from rl4p.protocols.collection import CollectorPhases
from rl4p.protocols.engine import Frees
from rl4p.protocols.phases import (
    KL,
    Adapts,
    Advantage,
    Anneals,
    Closes,
    Correction,
    Critic,
    Distils,
    Entropy,
    Estimator,
    Remembers,
    Reward,
    Rollout,
    TeachesCritic,
    Update,
    UserScore,
)
from rl4p.protocols.traits import PhaseTraits, RewardTraits, UpdateTraits

LARGEST = float(np.finfo(np.float32).max)

log = logging.getLogger(__name__)


class AdvantageEstimate(NamedTuple):
    """The result of the advantage phase, from which the update learns."""

    advantages_BT: Array
    # The response mask without invalid samples and truncated samples dropped here.
    loss_mask_BT: Array
    returns_BT: Array | None  # the targets of the critic; None without a critic
    # `update/kl`, the mean penalty per token, if the KL penalty is in the reward
    metrics: dict[str, Array]

    def for_update(self, scores: dict[str, Array]) -> dict[str, Array]:
        """Returns the scores, with the targets of the critic if there is one."""
        return scores if self.returns_BT is None else scores | {"returns": self.returns_BT}


def estimate(
    advantage: Any,
    kl: Any,
    trajectories: Trajectories,
    rewards: Rewards,
    scores: dict[str, Array],
    coefficient: Array,
    **memory: Any,
) -> Any:
    """Calls an advantage phase (`protocols.Advantage`) with the scores that it requested.

    Args:
      kl: a `protocols.KL`; with placement in_reward it is subtracted from the reward per token.

    Returns:
      An `AdvantageEstimate`, and the new memory if the phase has one.

    Raises:
      RunError: the result of the phase has a wrong type or shape; raised while this is traced.
    """
    rewards = drop_truncated(advantage, trajectories, rewards)
    mask_BT, metrics = loss_mask(trajectories, rewards), {}
    if kl.active and kl.placement == "in_reward":
        behaviour_BT = jnp.where(mask_BT, trajectories.behaviour_logprobs_BT, 0.0)
        reference_BT = jnp.where(mask_BT, scores["reference_logprobs"], 0.0)
        divergence_BT = kl.penalty(behaviour_BT, reference_BT, behaviour_BT)
        divergence_BT = jnp.where(mask_BT, divergence_BT, 0.0)
        tokens = jnp.maximum(jnp.sum(mask_BT, dtype=jnp.float32), 1)
        metrics["update/kl"] = jnp.sum(divergence_BT) / tokens
        penalty_BT = -coefficient * divergence_BT
        own_BT = 0.0 if rewards.tokens_BT is None else rewards.tokens_BT
        rewards = replace(
            rewards,
            total_B=rewards.total_B + jnp.sum(penalty_BT, axis=1),
            tokens_BT=own_BT + penalty_BT,
        )
    needs = PhaseTraits.read(advantage).needs
    requested = {"scores": {name: scores[name] for name in needs}} if needs else {}
    result = advantage(trajectories, rewards, **requested, **memory)
    if memory:
        check_pair("advantage", advantage, result, "(advantages_BT, memory)")
    advantages_BT, *new_memory = result if memory else (result,)
    shape, returns_BT = trajectories.tokens_BT.shape, None
    check_array("advantage", advantage, "advantages_BT", advantages_BT, shape)
    if isinstance(advantage, TeachesCritic):
        returns_BT = advantage.returns(trajectories, rewards, requested["scores"])
        check_array("advantage", advantage, "returns", returns_BT, shape)
    estimated = AdvantageEstimate(clipped(advantage, advantages_BT), mask_BT, returns_BT, metrics)
    return (estimated, *new_memory) if memory else estimated


Memory = dict[str, Any]  # the memory of each phase that has one, by phase name

# The scores that phases may request in `needs`. `scoring.py` computes them after the rewards.
SCORES = frozenset(
    {
        "answer_clusters",
        "collision",
        "entropy",
        "greedy_rewards",
        "margins",
        "mismatched_log_ratios",
        "proximal_logprobs",
        "reference_logprobs",
        "right",
        "task_ids",
        "teacher_logprobs",
        "turn_roles",
        "turn_states",
        "values",
    }
)

# The phases that may request any score, and the only score that each other phase may request.
GIVEN_ALL = ("advantage", "update", "correction")
GIVEN_ONE = {"kl": "reference_logprobs", "entropy": "entropy"}
NAMES = ("rollout", "reward", "advantage", "update", "correction", "kl", "entropy", "critic")
KEEP_MEMORY = ("rollout", "reward", "advantage", "kl", "entropy")


@dataclass(frozen=True, kw_only=True)
class Phases:
    """The phases of a run: rollout, reward, advantage, update and the other parts of the loss."""

    rollout: Rollout
    reward: Reward
    advantage: Advantage
    update: Update
    correction: Correction
    kl: KL
    entropy: Entropy
    critic: Critic
    # User-defined scores by name (`protocols.UserScore`), which phases may request.
    scores: dict[str, UserScore] = field(default_factory=dict)
    # Functions by phase name, called with the result and the arguments of the phase. The check of
    # an update is called with its batch (`debug.check_batches`).
    checks: dict[str, Callable[..., None]] = field(default_factory=dict)
    # The lock that a call of the reward holds.
    grading: Any = field(default_factory=Lock, repr=False, compare=False)

    @property
    def by_name(self) -> dict[str, Any]:
        """Returns the phases by name."""
        return {name: getattr(self, name) for name in NAMES}

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
        for name, phase in self.by_name.items():
            requested = frozenset(PhaseTraits.read(phase).needs)
            if requested - known:
                raise InputError(
                    f"{name} needs {sorted(requested - known)}, but the loop computes "
                    f"{sorted(known)}: add other scores as scores.NAME."
                )
            given = known if name in GIVEN_ALL else frozenset({GIVEN_ONE.get(name)})
            if requested - given:
                what = f"only ['{GIVEN_ONE[name]}']" if name in GIVEN_ONE else "no scores"
                raise InputError(
                    f"{name} needs {sorted(requested - given)}, but the loop passes {what} to this "
                    "phase."
                )
            needs |= requested
        if unused := sorted(self.scores.keys() - needs):
            raise InputError(f"No phase needs scores.{unused[0]}: leave it out.")
        if "values" in needs and not self.critic.active:
            raise InputError("The advantage needs values: choose critic=shared or critic=separate.")
        if self.critic.active and not isinstance(self.advantage, TeachesCritic):
            raise InputError("A critic needs advantage=gae: choose it, or choose critic=none.")
        return needs

    @property
    def estimator(self) -> Estimator | None:
        """Returns the critic if it is active, otherwise None."""
        if not self.critic.active:
            return None
        if not isinstance(self.critic, Estimator):
            raise InputError("critic is active, so it must have the methods init, values and loss.")
        return self.critic

    @property
    def values(self) -> Callable[..., Array] | None:
        """Returns the method `values` of the critic if it is active, otherwise None."""
        return None if self.estimator is None else self.estimator.values

    def rows_together(self, group_size: int) -> int:
        """Returns how many rows of a group the update never divides."""
        return group_size if UpdateTraits.read(self.update).whole_groups else 1

    @property
    def taught(self) -> str | None:
        """Returns the name of the phase that compares with a teacher; None if there is none."""
        if isinstance(self.update, Distils):
            return "update"
        needs = {name: PhaseTraits.read(self.by_name[name]).needs for name in GIVEN_ALL}
        return next((name for name in GIVEN_ALL if "teacher_logprobs" in needs[name]), None)

    def frozen(self, policy: Policy, teacher: tuple[Decoder, Params] | None = None) -> Params:
        """Returns the parameters that the gradient step reads beside the trained ones."""
        if teacher is None or not isinstance(self.update, Distils):
            return policy.frozen
        return policy.frozen | {"teacher": teacher[1]}

    def objective(
        self, policy: Policy, group_size: int, teacher: tuple[Decoder, Params] | None = None
    ) -> Objective:
        """Returns the objective of the gradient step, a static argument of its compilation."""
        distils = isinstance(self.update, Distils)
        return Objective(
            update=self.update,
            correction=self.correction,
            kl=self.kl,
            entropy=self.entropy,
            critic=self.critic,
            decoder=policy.decoder,
            sampling=self.rollout.sampling,
            mesh=policy.mesh,
            rows_together=self.rows_together(group_size),
            teacher=teacher[0] if teacher is not None and distils else None,
            pad_id=policy.pad_id,
        )

    def score_options(self, policy: Policy) -> ScoreOptions:
        """Returns the options with which the log-probabilities of the policy are computed."""
        return ScoreOptions(
            decoder=policy.decoder,
            sampling=self.rollout.sampling,
            microbatching=self.update.microbatching,
            mesh=policy.mesh,
        )

    def initial_memory(self) -> Memory:
        """Returns the initial memory of each phase that has one."""
        memory = {
            name: phase.initial_state()
            for name, phase in self.by_name.items()
            if isinstance(phase, Remembers)
        }
        if refused := [name for name in memory if name not in KEEP_MEMORY]:
            raise InputError(
                f"{refused[0]} has an initial_state but cannot keep memory: it runs on "
                "microbatches, which are summed in any order."
            )
        return memory

    @cached_property
    def compiled_estimate(self) -> Callable[..., Any]:
        return jax.jit(partial(estimate, self.advantage, self.kl))

    def sample(
        self,
        memory: Memory,
        policy: Policy,
        params: Params,
        prompts: Sequence[Prompt],
        *,
        group_size: int,
        key: Array,
        version: int,
        greedy: bool = False,
    ) -> tuple[tuple[Trajectories, Sequence[Episode]], Memory]:
        """Calls the rollout; returns its result and the memory of all phases after the call."""
        rollout = with_memory(self.rollout, "rollout", memory)
        options = {"group_size": group_size, "key": key, "version": version, "greedy": greedy}
        result, memory = rollout(policy, params, prompts, **options)
        self.check("rollout", result, policy, version=version)
        return result, memory

    def grade(
        self, memory: Memory, trajectories: Trajectories, episodes: Sequence[Episode]
    ) -> tuple[Rewards, Memory]:
        """Calls the reward; returns the rewards and the memory of all phases after the call.

        Only one thread at a time calls the reward, so that the deadline of a term does not count
        the time in which it grades for another thread.
        """
        with self.grading, counted("reward", "grades"):
            reward = with_memory(self.reward, "reward", memory)
            rewards, memory = reward(trajectories, episodes)
        self.check("reward", rewards, trajectories)
        rewards = checked_rewards(self.reward, rewards, len(episodes))
        return without_failures(rewards, episodes), memory

    def estimate(
        self,
        memory: Memory,
        trajectories: Trajectories,
        rewards: Rewards,
        scores: dict[str, Array],
        kl_coefficient: Array,
    ) -> tuple[AdvantageEstimate, Memory]:
        """Calls the compiled advantage (`estimate`); returns its result and the memory after it."""
        advantage = with_memory(self.compiled_estimate, "advantage", memory)
        estimated, memory = advantage(trajectories, rewards, scores, kl_coefficient)
        self.check("advantage", estimated.advantages_BT, trajectories, rewards)
        return estimated, memory

    def check(self, name: str, *args: Any, **kwargs: Any) -> None:
        """Checks the result of a phase, or the batch of an update, if checks are enabled."""
        if name in self.checks:
            self.checks[name](*args, **kwargs)

    def free(self) -> None:
        """Gives memory of the rollout back until its next call."""
        if isinstance(self.rollout, Frees):
            self.rollout.free()

    def close(self) -> None:
        """Ends what rollout and reward have opened, such as processes and connections."""
        for phase in (self.rollout, self.reward):
            if isinstance(phase, Closes):
                phase.close()

    def temperature(self, step: int) -> dict[str, float]:
        """Returns the temperature of a step as `temperature` if it changes over the run, or {}."""
        if not isinstance(self.rollout, Anneals):
            return {}
        temperature = self.rollout.temperature_at(step)
        return {} if temperature is None else {"temperature": temperature}

    def coefficients(self, memory: Memory, step: int) -> dict[str, Any]:
        """Returns the coefficients of a step's loss.

        They are the weights of the KL penalty and of the entropy bonus, and the temperature if it
        changes over the run.
        """
        return {
            "kl": self.kl.coefficient(memory.get("kl", {})),
            "entropy": self.entropy.coefficient(memory.get("entropy", {})),
        } | self.temperature(step)

    def adapt(self, memory: Memory, metrics: dict[str, Any]) -> Memory:
        """Returns the memory with the KL and entropy coefficients adapted to a step's metrics."""
        adapted = {
            name: phase.next_state(memory[name], metrics[f"update/{name}"])
            for name, phase in (("kl", self.kl), ("entropy", self.entropy))
            if name in memory and isinstance(phase, Adapts)
        }
        return memory | adapted


def with_memory(
    phase: Callable[..., Any], name: str, memory: Memory
) -> Callable[..., tuple[Any, Memory]]:
    """Returns a function that calls a phase, with the memory of the phase if it has one.

    The function returns the phase's result, and the memory of all phases with the phase's new one.

    Args:
      name: the key of the phase in `memory`.
    """

    def call(*arguments: Any, **options: Any) -> tuple[Any, Memory]:
        if name not in memory:
            return phase(*arguments, **options), memory
        result, own = phase(*arguments, **options, memory=memory[name])
        return result, memory | {name: own}

    return call


def graded(
    phases: CollectorPhases,
    memory: dict[str, Any],
    trajectories: Trajectories,
    episodes: Sequence[Episode],
) -> tuple[Rewards, dict[str, Any]]:
    """Calls the reward phase on the process's share of rows.

    Groups of known size are not divided, nor are the groups of a reward with ``whole_groups``. A
    reward with memory gets all rows in every process, because the memories must be equal. So does
    every reward if there are fewer groups than processes.
    """
    processes = len(share(len(episodes)))
    if processes == 1:
        return phases.grade(memory, trajectories, episodes)
    trajectories = to_host(trajectories)
    together = trajectories.group_size > 1 or RewardTraits.read(phases.reward).whole_groups
    groups_B = np.asarray(trajectories.group_ids_B) if together else np.arange(len(episodes))
    # The rows ordered by group, and where each group starts in them, with the end.
    order_B = np.argsort(groups_B, kind="stable")
    starts = [0, *np.cumsum(np.unique(groups_B, return_counts=True)[1]).tolist()]
    parts = share(len(starts) - 1)
    if "reward" in memory or not all(parts):
        return phases.grade(memory, trajectories, episodes)
    own = parts[jax.process_index()]
    rows = order_B[starts[own.start] : starts[own.stop]]
    trajectories = jax.tree.map(lambda x: x[rows], trajectories)
    part = tuple(episodes[row] for row in rows)
    rewards, memory = phases.grade(memory, trajectories, part)
    gathered = gathered_rows(
        rewards, [range(starts[part.start], starts[part.stop]) for part in parts]
    )
    return jax.tree.map(lambda x: x[np.argsort(order_B)], gathered), memory


def without_failures(rewards: Rewards, episodes: Sequence[Episode]) -> Rewards:
    """Returns the rewards; samples whose environment failed are invalid."""
    failed_B = np.array([each.failure is not None for each in episodes], bool)
    if not failed_B.any():
        return rewards
    first = episodes[int(np.argmax(failed_B))]
    log.warning(
        "%d of %d episodes failed, such as one of the prompt %s: %s. These samples are invalid.",
        np.sum(failed_B),
        len(episodes),
        first.prompt.id,
        first.failure,
    )
    return masked(rewards, ~failed_B)


def masked(rewards: Rewards, valid_B: np.ndarray) -> Rewards:
    """Returns the rewards with 0 for the samples that are invalid now."""
    valid_B = np.asarray(to_host(rewards.valid_B)) & valid_B

    def kept(values: Array) -> np.ndarray:
        rows = valid_B if np.ndim(values) == 1 else valid_B[:, None]
        return np.where(rows, np.asarray(to_host(values)), 0.0).astype(np.float32)

    return replace(
        rewards,
        total_B=kept(rewards.total_B),
        terms={name: kept(grade_B) for name, grade_B in rewards.terms.items()},
        valid_B=valid_B,
        tokens_BT=None if rewards.tokens_BT is None else kept(rewards.tokens_BT),
    )


def checked_rewards(phase: Any, rewards: Any, rows: int) -> Rewards:
    """Returns rewards whose valid samples have finite float32 rewards; others become invalid.

    Raises:
      RunError: these are no `Rewards`, or one of the arrays has a wrong type or shape.
    """
    if not isinstance(rewards, Rewards):
        refuse("reward", phase, "rl4p.base.types.Rewards", f"not {described(rewards)}")
    terms = check_names("reward", phase, "terms", rewards.terms)
    late = {} if rewards.late_B is None else {"late_B": rewards.late_B}
    for kind, arrays in (
        ("f", {"total_B": rewards.total_B} | terms),
        ("b", {"valid_B": rewards.valid_B} | late),
    ):
        for name, values in arrays.items():
            check_array("reward", phase, name, values, (rows,), kind)
    total_B, valid_B, terms = to_host((rewards.total_B, rewards.valid_B, terms))
    wrong_B = ~(np.abs(total_B) <= LARGEST)
    for grade_B in terms.values():
        wrong_B = wrong_B | (np.abs(grade_B) > LARGEST)  # nan where the term does not apply
    if not np.any(wrong_B & valid_B):
        return rewards
    log.warning(
        "reward (%s) gave %d of %d samples a number that is not finite as float32, such as %s. "
        "These samples are invalid.",
        type(phase).__name__,
        np.sum(wrong_B & valid_B),
        rows,
        total_B[np.argmax(wrong_B & valid_B)],
    )
    return masked(rewards, ~wrong_B)
