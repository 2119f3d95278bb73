"""A collector that samples more prompts until enough groups are worth training on."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, lcm
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from rl4p.base.types import Group, Prompt, TrainState
from rl4p.configuration.bounds import FINITE, Positive
from rl4p.distributed.processes import to_host
from rl4p.loop.cache import SuccessCache
from rl4p.loop.collector.synchronous import OpenSynchronous
from rl4p.loop.groups import check_filters, divided, joined
from rl4p.loop.metrics import drawn_shares, rollout_metrics
from rl4p.loop.prompts import Quota
from rl4p.loop.stopwatch import Stopwatch
from rl4p.model.policy import Policy
from rl4p.protocols.collection import Collected, CollectorPhases, Filter, OpenSource

PARTS = (1, 2, 4, 8)  # a round has the size of the first one, divided by one of these


@dataclass(frozen=True, kw_only=True)
class DynamicSampling:
    """Options of a collector with filters, as in DAPO (Yu et al., 2025).

    A step samples and grades prompts in rounds. Groups that all filters keep are accepted, in the
    order of their prompts, until the step has `prompts_per_step` of them. Prompts whose groups were
    not needed come first in the next step. The source is credited with all groups that
    were accepted or rejected.

    Attributes:
      filters: filters by name.
      rounds: the most rounds of a step.
      over_sampling: how many prompts a round samples for each missing group. This is rounded up to
        the number of the first round, or to a half, a quarter or an eighth of it, because each
        number of rows is compiled once.
      otherwise: what fills the step if groups are still missing after the last round: `keep` takes
        the last rejected groups. `drop` takes them as invalid, so that they do not change the loss.
      cache: a cache of solutions, used before the filters; None for none.
    """

    filters: Mapping[str, Filter] = field(default_factory=dict)
    rounds: Positive = 3
    over_sampling: Annotated[float, Ge(1), FINITE] = 1.0
    otherwise: Literal["keep", "drop"] = "keep"
    cache: SuccessCache | None = None

    def __post_init__(self) -> None:
        if not self.filters and (self.rounds > 1 or self.over_sampling > 1):
            raise ValueError(
                "filters is empty, so every group is accepted: add one with "
                "+filter@collector.filters.NAME=OPTION, or choose collector=synchronous."
            )

    def open(
        self,
        phases: CollectorPhases,
        policy: Policy,
        source: OpenSource,
        *,
        prompts_per_step: int,
        group_size: int,
    ) -> "OpenDynamicSampling":
        return OpenDynamicSampling(self, phases, policy, source, prompts_per_step, group_size)


class OpenDynamicSampling(OpenSynchronous):
    """An `OpenCollector` that keeps the prompts whose groups were not needed."""

    def __init__(self, options: DynamicSampling, phases: CollectorPhases, *others: Any) -> None:
        super().__init__(phases, *others)
        self.options = options
        self.cache = options.cache and options.cache.open(phases)
        check_filters(options.filters, self.group_size)
        self.waiting: list[Prompt] = []

    def collect(self, state: TrainState) -> Collected:
        options, watch, memory = self.options, Stopwatch(), state.memory
        quota, weights = Quota(self.source, self.prompts_per_step), self.weights(state)
        accepted: list[Group] = []
        rejected: list[Group] = []
        graded: list[Group] = []  # the same, without what the cache has changed
        counts = {"rounds": 0, "sampled": 0, "from_cache": 0}
        while len(accepted) < self.prompts_per_step and counts["rounds"] < options.rounds:
            missing = self.prompts_per_step - len(accepted)
            count = self.size_of_round(missing)
            prompts, self.waiting = quota.choose(self.waiting, count)  # those that wait come first
            prompts += quota.take(count - len(prompts), int(state.step))
            trajectories, episodes, rewards, memory = self.sampled(
                prompts, state, weights, memory, watch, counts["rounds"]
            )
            trajectories, rewards = to_host((trajectories, rewards))
            groups = divided(trajectories, episodes, rewards)
            counts["rounds"] += 1
            counts["sampled"] += len(groups)
            for number, group in enumerate(groups):
                if len(accepted) == self.prompts_per_step:
                    self.waiting = [each.prompt for each in groups[number:]] + self.waiting
                    break
                graded.append(group)
                if self.cache is not None:
                    group, replaced = self.cache(group)
                    counts["from_cache"] += replaced
                keep = all(keeps(group) for keeps in options.filters.values())
                (accepted if keep else rejected).append(group)
        counts["rejected"] = len(rejected)
        counts["missing"] = self.prompts_per_step - len(accepted)
        others = rejected[len(rejected) - counts["missing"] :]
        if options.otherwise == "drop":
            others = [group.without(np.ones(self.group_size, bool)) for group in others]
        batch = accepted + others
        _, episodes, rewards = joined(graded, self.policy.pad_id)
        self.source.credit(int(state.step), episodes, rewards)
        trajectories, episodes, rewards = joined(batch, self.policy.pad_id)
        trajectories, rewards = self.policy.mesh.shard_rows((trajectories, rewards))
        return Collected(
            trajectories=trajectories,
            episodes=episodes,
            rewards=rewards,
            memory=memory,
            metrics=watch.times()
            | rollout_metrics(self.phases.rollout)
            | {f"collector/{name}": float(count) for name, count in counts.items()}
            | drawn_shares([group.episodes[0] for group in batch]),
        )

    def size_of_round(self, missing: int) -> int:
        """Returns how many prompts a round samples, whose rows the mesh divides."""
        over, rows = self.options.over_sampling, self.policy.mesh.row_shards
        first = ceil(over * self.prompts_per_step)
        size = min(n for part in PARTS if (n := ceil(first / part)) >= over * missing)
        together = lcm(rows, self.group_size) // self.group_size
        return -(-size // together) * together

    def state(self) -> dict[str, Any]:
        return {
            "waiting": [[prompt.id, prompt.drawn_by] for prompt in self.waiting],
            "cache": {} if self.cache is None else self.cache.state(),
            "weights": self.weights.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        self.waiting = [
            replace(self.source.find(id), drawn_by=drawn_by) for id, drawn_by in state["waiting"]
        ]
        if self.cache is not None:
            self.cache.restore(state["cache"])
        self.weights.restore(state["weights"])
