"""A collector that runs rollout and reward in sequence, with the synced parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from rl4p.base.types import Episode, Params, Prompt, Rewards, TrainState, Trajectories
from rl4p.distributed.processes import to_host
from rl4p.loop.metrics import drawn_shares, rollout_metrics
from rl4p.loop.phases import graded
from rl4p.loop.prompts import Quota
from rl4p.loop.stopwatch import Stopwatch
from rl4p.loop.synced_weights import SyncedWeights
from rl4p.model.policy import Policy
from rl4p.protocols.collection import Collected, CollectorPhases, OpenSource


@dataclass(frozen=True, kw_only=True)
class Synchronous:
    """Options of a collector that samples and grades all trajectories of a step in that step."""

    def open(
        self,
        phases: CollectorPhases,
        policy: Policy,
        source: OpenSource,
        *,
        prompts_per_step: int,
        group_size: int,
    ) -> "OpenSynchronous":
        return OpenSynchronous(phases, policy, source, prompts_per_step, group_size)


class OpenSynchronous:
    """An `OpenCollector` whose state between steps is that of its weights."""

    def __init__(
        self,
        phases: CollectorPhases,
        policy: Policy,
        source: OpenSource,
        prompts_per_step: int,
        group_size: int,
        weights: SyncedWeights | None = None,
    ) -> None:
        self.phases, self.policy, self.source = phases, policy, source
        self.prompts_per_step, self.group_size = prompts_per_step, group_size
        self.weights = weights or SyncedWeights(phases.rollout)

    def collect(self, state: TrainState) -> Collected:
        watch, step = Stopwatch(), int(state.step)
        weights = self.weights(state)
        prompts = Quota(self.source, self.prompts_per_step).take(self.prompts_per_step, step)
        trajectories, episodes, rewards, memory = self.sampled(
            prompts, state, weights, state.memory, watch
        )
        with watch("reward"):
            self.source.credit(step, episodes, to_host(rewards))
            rewards = self.policy.mesh.shard_rows(rewards)
        return Collected(
            trajectories=trajectories,
            episodes=episodes,
            rewards=rewards,
            memory=memory,
            metrics=watch.times()
            | rollout_metrics(self.phases.rollout)
            | drawn_shares(episodes[:: self.group_size]),
        )

    def sampled(
        self,
        prompts: Sequence[Prompt],
        state: TrainState,
        weights: tuple[int, Params],
        memory: dict[str, Any],
        watch: Stopwatch,
        number: int = 0,
    ) -> tuple[Trajectories, Sequence[Episode], Rewards, dict[str, Any]]:
        """Samples and grades prompts; the last result is the memory of the phases.

        Args:
          weights: the weights to sample with, and before them their version.
          number: the number of the round in the step, since each has a random key of its own.
        """
        version, params = weights
        # Updates fold in 1, so the rounds fold in 0, 2, 3, ...
        key = jax.random.fold_in(state.step_key(), number + 1 if number else 0)
        with watch("rollout"):
            (trajectories, episodes), memory = self.phases.sample(
                memory,
                self.policy,
                params,
                prompts,
                group_size=self.group_size,
                key=key,
                version=version,
            )
        with watch("reward"):
            rewards, memory = graded(self.phases, memory, trajectories, episodes)
        return trajectories, episodes, rewards, memory

    def state(self) -> dict[str, Any]:
        return self.weights.state()

    def restore(self, state: dict[str, Any]) -> None:
        self.weights.restore(state)

    def close(self) -> None:
        pass
