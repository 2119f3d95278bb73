"""A collector that samples and grades in the background, while the update runs."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from annotated_types import Ge

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Array, Group, TrainState
from rl4p.configuration.bounds import FINITE, AboveZero, Natural, Positive
from rl4p.distributed.processes import to_host
from rl4p.loop.cache import SuccessCache
from rl4p.loop.collector.synchronous import OpenSynchronous
from rl4p.loop.groups import check_filters, divided, joined, newest_only
from rl4p.loop.metrics import drawn_shares, staleness_shares
from rl4p.loop.pending_groups import (
    PendingGroup,
    PendingGroups,
    finished_groups,
    keys_of,
    limits_of,
    requests_for,
)
from rl4p.loop.prompts import take
from rl4p.loop.stopwatch import WORK, WorkingTime, clock, doing, waited_for
from rl4p.model.policy import Policy
from rl4p.protocols.collection import Collected, CollectorPhases, Filter, OpenSource
from rl4p.protocols.engine import (
    Completion,
    Engine,
    HasMetrics,
    HoldsEpisodes,
    OpensEngine,
    opened,
)
from rl4p.protocols.traits import RolloutTraits
from rl4p.rollout.episodes import seed_of
from rl4p.rollout.sampler import answers_on_host

SECONDS_FOR_STALLED = 1.0  # that a thread has to end
BACKGROUND = ("sampling", "grading")  # the work of the threads


@dataclass(frozen=True, kw_only=True)
class Asynchronous:
    """Options of a collector whose sampling goes on during updates.

    A thread samples groups, with parameters of its own: on the devices of the run, or on
    `mesh.rollout_devices`. Another thread grades them. A step takes `prompts_per_step` graded
    groups in the order of their prompts. With ``ahead=0`` a step equals one of
    `collector=synchronous`, bit for bit.

    Without over-sampling, a step waits for the longest response of the next prompts, so that long
    responses are not rarer. With over-sampling, it takes the groups that finish first, and others
    are interrupted then; with `on_new_weights=finish`, they are sampled to their end first.

    Attributes:
      ahead: how many steps sampling may run ahead of training. Groups start only while fewer than
        (ahead + 1) `prompts_per_step` groups, and the groups of `over_sampling`, are pending.
      max_staleness: the most steps between the weight version of a trained token and the step that
        trains it. Older groups are sampled again. None is `ahead`, one more with over-sampling, and
        n - 1 more with ``rollout.sync_every=n``.
      on_new_weights: what happens to responses that are being sampled when a step has new weights.
        `finish` goes on with the old ones. `abort` starts the group again. `continue` keeps its
        tokens, with their log-probabilities and versions, and goes on with the new weights.
      over_sampling: how many groups are pending for each group that the next step needs, on top
        of those for the steps ahead.
      late: what happens to a group that would be too old in the next step: `wait` makes the step
        wait for it, `restart` samples it again with newer weights.
      only_new_tokens: whether only the tokens of the newest weights in a response are trained.
      filters: filters by name; a group that one of them rejects is replaced by the next prompt.
      rounds: a step that has rejected `rounds` x `prompts_per_step` groups keeps all others.
      max_restarts: after this many restarts, a group keeps its tokens, and the step waits for it.
      max_failures: how often in a row the engine may return nothing for a group.
      patience: the seconds after which the run ends if no call of the engine or the reward has
        ended; more than the longest call takes.
      cache: a cache of solutions, used before the filters; None for none.
    """

    ahead: Natural = 1
    max_staleness: Natural | None = None
    on_new_weights: Literal["finish", "abort", "continue"] = "finish"
    over_sampling: Annotated[float, Ge(1), FINITE] = 1.0
    late: Literal["wait", "restart"] = "wait"
    only_new_tokens: bool = False
    filters: Mapping[str, Filter] = field(default_factory=dict)
    rounds: Positive = 3
    max_restarts: Positive = 3
    max_failures: Natural = 3
    patience: AboveZero = 600.0
    cache: SuccessCache | None = None

    def __post_init__(self) -> None:
        if self.max_staleness is not None and self.max_staleness < self.ahead:
            raise ValueError(
                f"ahead={self.ahead} makes tokens {self.ahead} steps old, but max_staleness="
                f"{self.max_staleness} would throw them away: choose at least {self.ahead}."
            )
        late, policy = f"late={self.late}", f"on_new_weights={self.on_new_weights}"
        for idle, option, why in (
            (not self.overlaps and self.max_staleness is not None,
             f"max_staleness={self.max_staleness}",
             "no token is older than its step: set ahead or over_sampling, or leave it out"),
            (not self.filters and self.rounds != type(self).rounds, f"rounds={self.rounds}",
             "filters is empty: add +filter@collector.filters.NAME=OPTION, or leave it out"),
            (not self.overlaps and self.on_new_weights != "finish", policy,
             "no sampling goes on when a step begins: set ahead or over_sampling, or leave it out"),
            (self.over_sampling == 1 and self.late != "wait", late,
             "a step without over_sampling waits for each of its groups: leave it out"),
            (self.only_new_tokens and self.on_new_weights != "continue", "only_new_tokens=true",
             "only on_new_weights=continue has responses of several weights: leave it out"),
        ):  # fmt: skip
            if idle:
                raise ValueError(f"{option} would have no effect, because {why}.")

    @property
    def overlaps(self) -> bool:
        """Whether sampling goes on during updates."""
        return self.ahead > 0 or self.over_sampling > 1

    @property
    def fresh(self) -> bool:
        """Whether a step may have tokens of its own weights."""
        return self.ahead == 0 or self.on_new_weights != "finish"

    def copies(self, shared: bool) -> int:
        """Returns the copies of the parameters on the training mesh."""
        # A call of the engine keeps the parameters that it began with while newer ones arrive.
        return 2 if shared and self.overlaps else 0

    def open(
        self,
        phases: CollectorPhases,
        policy: Policy,
        source: OpenSource,
        *,
        prompts_per_step: int,
        group_size: int,
    ) -> "OpenAsynchronous":
        return OpenAsynchronous(self, phases, policy, source, prompts_per_step, group_size)


class OpenAsynchronous(OpenSynchronous):
    """An `OpenCollector` with a thread that samples and one that grades.

    The main thread alone takes prompts, rejects groups and hands them out. `condition` guards all.
    """

    def __init__(self, options: Asynchronous, phases: CollectorPhases, *others: Any) -> None:
        super().__init__(phases, *others)
        policy, source, group_size = self.policy, self.source, self.group_size
        self.options, self.every = options, RolloutTraits.read(phases.rollout).sync_every
        limits = limits_of(options, self.prompts_per_step, group_size, source, self.every)
        self.pending = PendingGroups(limits=limits)
        self.cache = options.cache and options.cache.open(phases)
        check_filters(options.filters, group_size)
        self.engine = open_engine(options.on_new_weights, phases, policy)
        rollout = phases.rollout
        self.episodes = rollout if isinstance(rollout, HoldsEpisodes) else None
        self.key: Array = jax.random.key(0)  # `collect` sets the key of the run
        self.condition = threading.Condition()
        self.interrupted = threading.Event()
        self.outbox: list[tuple[PendingGroup, Group]] = []
        self.error: BaseException | None = None
        self.closed = self.stalled = False
        self.progress = time.monotonic()
        self.sampling, self.grading = (WorkingTime(work) for work in BACKGROUND)
        self.threads: list[threading.Thread] = []

    def collect(self, state: TrainState) -> Collected:
        step, began = int(state.step), clock()
        rejected: list[Group] = []
        with self.condition, doing("trainer_waits", began):
            self.key = jnp.copy(state.key)  # the update donates the key of the state
            version, params = self.weights(state)
            if self.engine.version != version:
                # The engine gets parameters of its own: the update donates the state's.
                apart = self.policy.mesh.rollout_devices
                if self.every == 1 and self.options.copies(not apart):
                    params = jax.tree.map(jnp.copy, params)
                self.engine.publish(params, version)
                if self.options.on_new_weights != "finish":
                    self.interrupted.set()
            self.pending.drop_old(step)
            batch = self.wait(step, rejected)
            self.pending.hand_out(batch)
            in_flight = len(self.pending.groups)
            finished = sum(pending.complete for pending in self.pending.groups)
            now = clock()
            sampling, grading = self.sampling.read(now), self.grading.read(now)
            counts, self.pending.counts = self.pending.counts, Counter()
        originals = [x.original for x in batch if x.original is not None] + rejected
        _, episodes, rewards = joined(originals, self.policy.pad_id)
        self.source.credit(step, episodes, rewards)
        groups = [x.group for x in batch if x.group is not None]
        trajectories, episodes, rewards = joined(groups, self.policy.pad_id)
        if self.options.only_new_tokens:
            trajectories = newest_only(trajectories)
        shares = staleness_shares(step, trajectories)
        trajectories, rewards = self.policy.mesh.shard_rows((trajectories, rewards))
        return Collected(
            trajectories=trajectories,
            episodes=episodes,
            rewards=rewards,
            memory=state.memory,
            metrics={
                "time/rollout": sampling.busy,
                "time/reward": grading.busy,
                "time/trainer_waits": now - began - waited_for(began, now, BACKGROUND),
                "time/sampler_waits": sampling.idle,
                "collector/in_flight": float(in_flight),
                "collector/queue": float(finished),
                "collector/sampled": float(len(originals)),
                "collector/rejected": float(len(rejected)),
                "collector/from_cache": float(counts["from_cache"]),
                "collector/aborted": float(counts["aborted"]),
                "collector/too_old": float(counts["too_old"]),
            }
            | shares
            | drawn_shares([group.episodes[0] for group in groups])
            | dict(self.episodes.metrics() if isinstance(self.episodes, HasMetrics) else {}),
        )

    def wait(self, step: int, rejected: list[Group]) -> list[PendingGroup]:
        """Returns the groups of a step once they are graded; adds those that filters reject."""
        if not self.threads:
            for name, work in zip(BACKGROUND, (self.sample, self.grade), strict=True):
                thread = threading.Thread(target=self.guarded, args=(name, work), daemon=True)
                self.threads.append(thread)
                thread.start()
        self.progress = time.monotonic()
        while True:
            self.sort(rejected)
            self.pending.admit(
                lambda count, repeated: take(self.source, count, step, repeated=repeated)
            )
            self.condition.notify_all()
            if self.error is not None:
                raise self.error
            for pending in self.pending.groups:
                if pending.failures > self.options.max_failures:
                    raise RunError(
                        f"The engine returned nothing for the prompt {pending.prompt.id} "
                        f"{self.options.max_failures + 1} times in a row."
                    )
            if (batch := self.pending.batch(step)) is not None:
                return batch
            if time.monotonic() - self.progress > self.options.patience:
                self.stalled, groups = True, self.pending.groups
                raise RunError(
                    f"Step {step + 1} has waited {self.options.patience:g} seconds "
                    f"(collector.patience) without progress: of {len(groups)} pending groups, "
                    f"{sum(pending.sampling for pending in groups)} are with the engine, "
                    f"{len(self.pending.to_grade())} are being graded and "
                    f"{sum(pending.group is not None for pending in groups)} are graded."
                )
            self.condition.wait(timeout=1.0)

    def sort(self, rejected: list[Group]) -> None:
        """Keeps or rejects the groups that were graded."""
        options, outbox, self.outbox = self.options, self.outbox, []
        for pending, group in outbox:
            changed = group
            if self.cache is not None:
                changed, replaced = self.cache(group)
                self.pending.counts["from_cache"] += replaced
            full = len(rejected) >= options.rounds * self.prompts_per_step
            keep = full or all(keeps(changed) for keeps in options.filters.values())
            if pending not in self.pending.groups:  # it became too old while it was graded
                continue
            pending.original = group
            self.pending.graded(pending, changed, keep=keep)
            if not keep:
                rejected.append(group)

    def guarded(self, name: str, work: Any) -> None:
        """Runs the work of a thread. The main thread raises its error, whatever it is."""
        WORK.set(name)
        try:
            while work():
                pass
        except BaseException as error:  # noqa: BLE001
            with self.condition:
                self.error = error
                self.condition.notify_all()

    def sample(self) -> bool:
        """Samples the next groups; returns False once the collector is closed."""
        limits = self.pending.limits
        start = partial(self.pending.start, limits.groups + limits.extra)
        with self.condition:
            if not (started := self.awaited(lambda: start(self.engine.version))):
                return False
            self.interrupted.clear()
            ready = sum(pending.complete for pending in self.pending.groups)
            keys_PN = [keys_of(x, self.key, self.prompts_per_step) for x in started]
            requests, places = requests_for(
                started, self.key, self.prompts_per_step, self.phases.rollout.max_response_tokens
            )
            self.sampling.begin()
        needed = max(1, limits.groups - ready) if limits.extra else len(started) + 1

        def stop(finished: np.ndarray) -> bool:
            if finished_groups(places, finished) >= needed:
                self.interrupted.set()
            return self.interrupted.is_set()

        if self.episodes is not None:  # with the seeds that the rollout itself would choose
            completions = self.episodes.hold(
                self.engine,
                self.policy,
                [pending.prompt for pending in started],
                np.array(keys_PN),
                seeds=[seed_of(keys_N[0]) for keys_N in keys_PN],
            )
        elif self.options.on_new_weights == "finish":
            completions = self.engine.complete(requests)
        else:
            completions = self.engine.complete(requests, stop=stop)
        with self.condition:
            self.sampling.end()
            parts: list[list[Completion | None]] = [[None] * self.group_size for _ in started]
            for (place, sample), completion in zip(places, completions, strict=True):
                parts[place][sample] = completion
            for pending, own in zip(started, parts, strict=True):
                self.pending.receive(pending, own, interrupted=self.interrupted.is_set())
            self.progress = time.monotonic()
            self.condition.notify_all()
        return True

    def awaited(self, choose: Callable[[], list[PendingGroup]]) -> list[PendingGroup]:
        """Returns what `choose` returns once it is not empty; [] once the collector is closed."""
        while not self.closed:
            if chosen := choose():
                return chosen
            self.condition.wait()
        return []

    def grade(self) -> bool:
        """Grades the groups that are finished; returns False once the collector is closed."""

        def ungraded() -> list[PendingGroup]:
            done = [pending for pending, _ in self.outbox]
            return [pending for pending in self.pending.to_grade() if pending not in done]

        with self.condition:
            if not (chosen := self.awaited(ungraded)):
                return False
            self.grading.begin()
        # One call of the reward grades them all.
        prompts = [pending.prompt for pending in chosen]
        completions = [x for pending in chosen for x in pending.completions if x is not None]
        if self.episodes is not None:
            rows = self.episodes.rows(self.policy, completions, self.group_size)
        else:
            limit = self.phases.rollout.max_response_tokens
            rows = answers_on_host(self.policy, prompts, completions, limit)
        trajectories, episodes = rows[0], tuple(rows[1])
        newest = max(int(trajectories.policy_version_BT.max()), 0)
        self.phases.check("rollout", (trajectories, episodes), self.policy, version=newest)
        rewards, _ = self.phases.grade({}, trajectories, episodes)
        groups = divided(trajectories, episodes, to_host(rewards))
        with self.condition:
            self.grading.end()
            self.outbox += zip(chosen, groups, strict=True)
            self.progress = time.monotonic()
            self.condition.notify_all()
        return True

    def state(self) -> dict[str, Any]:
        with self.condition:
            return {
                "pending": self.pending.state(),
                "cache": {} if self.cache is None else self.cache.state(),
                "weights": self.weights.state(),
            }

    def restore(self, state: dict[str, Any]) -> None:
        self.pending.restore(state["pending"], self.source.find)
        if self.cache is not None:
            self.cache.restore(state["cache"])
        self.weights.restore(state["weights"])

    def close(self) -> None:
        """Ends the threads, after the call of the engine that is under way."""
        with self.condition:
            self.closed = True
            self.interrupted.set()
            self.condition.notify_all()
        for thread in self.threads:  # one that hangs ends with the process
            thread.join(timeout=SECONDS_FOR_STALLED if self.stalled else None)
        self.engine.close()


def open_engine(on_new_weights: str, phases: CollectorPhases, policy: Policy) -> Engine:
    """Returns the engine of a rollout, if it can sample while an update runs."""
    rollout = phases.rollout
    if not isinstance(rollout, OpensEngine | HoldsEpisodes):
        needed = "needs a rollout with an engine: choose rollout=continuous, or"
    elif memories := phases.initial_memory().keys() & {"rollout", "reward"}:
        needed = f"cannot keep the memory of the {' and the '.join(sorted(memories))}: choose"
    elif RolloutTraits.read(rollout).sleep:
        raise InputError(
            "rollout.sleep=true would have no effect with collector=asynchronous, because it "
            "samples during updates: leave it out, or choose collector=synchronous."
        )
    elif jax.process_count() > 1:
        # Threads of several processes would start their programs in different orders.
        needed = f"runs in one process, but there are {jax.process_count()}: choose"
    else:
        engine = opened(rollout, policy)
        if on_new_weights != "finish" and isinstance(rollout, HoldsEpisodes):
            raise InputError(
                f"collector.on_new_weights={on_new_weights} would interrupt episodes, whose "
                "environments cannot go back: choose finish."
            )
        if on_new_weights != "finish" and not engine.stops:
            raise InputError(
                f"collector.on_new_weights={on_new_weights} needs an engine that can be "
                "stopped between tokens: choose rollout=continuous, or finish."
            )
        return engine
    raise InputError(f"collector=asynchronous {needed} collector=synchronous.")
