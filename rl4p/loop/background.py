"""Phases in the background: what they must fulfil, and the time that they work."""

from typing import NamedTuple

import jax

from rl4p.base.errors import InputError
from rl4p.loop.stopwatch import clock, compiled_within
from rl4p.protocols.collection import CollectorPhases
from rl4p.protocols.engine import Engine, HoldsEpisodes, OpensEngine
from rl4p.protocols.traits import RolloutTraits


def check_phases(phases: CollectorPhases) -> OpensEngine | HoldsEpisodes:
    """Returns the rollout if the phases can run while an update does.

    Raises:
      InputError: the rollout has no engine, it or the reward keeps a memory, or there are several
        processes.
    """
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
        return rollout
    raise InputError(f"collector=asynchronous {needed} collector=synchronous.")


def check_interruptions(
    rollout: OpensEngine | HoldsEpisodes, engine: Engine, on_new_weights: str
) -> None:
    """Refuses to interrupt what cannot be interrupted.

    Raises:
      InputError: new weights would interrupt episodes, or an engine that cannot be stopped.
    """
    if on_new_weights == "finish":
        return
    if isinstance(rollout, HoldsEpisodes):
        raise InputError(
            f"collector.on_new_weights={on_new_weights} would interrupt episodes, whose "
            "environments cannot go back: choose finish."
        )
    if not engine.stops:
        raise InputError(
            f"collector.on_new_weights={on_new_weights} needs an engine that can be "
            "stopped between tokens: choose rollout=continuous, or finish."
        )


class Times(NamedTuple):
    """The seconds that a thread worked and did not."""

    busy: float
    idle: float


class WorkingTime:
    """Measures how long a thread works between two readings, also if work goes on at a reading.

    Compilation is neither work nor idle. One lock must guard all calls.

    Args:
      work: the name of the work of the thread (`stopwatch.WORK`).
    """

    def __init__(self, work: str) -> None:
        self.work = work
        self.last_reading = clock()
        self.since: float | None = None
        self.busy = self.compiled = 0.0

    def begin(self) -> None:
        self.since = clock()

    def end(self) -> None:
        """Adds the time since `begin`, or since the last reading if that was later."""
        if self.since is not None:
            self.add(clock())
        self.since = None

    def add(self, now: float) -> None:
        assert self.since is not None
        compiled = compiled_within(self.since, now, self.work)
        self.busy += now - self.since - compiled
        self.compiled += compiled

    def read(self, now: float) -> Times:
        """Returns the times between the last reading and `now`."""
        if self.since is not None:
            self.add(now)
            self.since = now
        passed = now - self.last_reading
        times = Times(busy=self.busy, idle=max(0.0, passed - self.busy - self.compiled))
        self.last_reading, self.busy, self.compiled = now, 0.0, 0.0
        return times
