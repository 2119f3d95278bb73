"""The servers of a rollout in this process: one loop in a thread, one set of weights at a time.

Several engines can have the same servers: that of a collector, and that of an evaluation with a
moving average. They share a fleet. A call of an engine first makes sure that the servers have the
weights of its engine, and others wait meanwhile.
"""

import asyncio
import atexit
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from rl4p.rollout.remote.pool import Pool
from rl4p.rollout.remote.probe import Probe
from rl4p.rollout.remote.weights_folder import Exported, WeightsFolder

if TYPE_CHECKING:
    from rl4p.rollout.remote.sampler import RemoteSampler

Result = TypeVar("Result")

SECONDS_TO_CLOSE = 10.0
LOCK = threading.Lock()
FLEETS: "dict[tuple, Fleet]" = {}  # by the kind of a rollout and its servers


@dataclass(frozen=True, eq=False, kw_only=True)
class Weights:
    """The weights of an engine.

    Attributes:
      version: the step that they come from.
      label: their name at the servers, which no other weights have.
      exported: the folder with them; None if the servers have weights of their own.
      probe, expected: the probe, and its log-probabilities under these weights.
    """

    version: int
    label: str
    exported: Exported | None
    probe: Probe
    expected: np.ndarray


class Fleet:
    """The pool of a rollout's servers, its loop and the folder of weights.

    Args:
      options: the rollout; engines whose rollouts have the same servers share its other options.
    """

    def __init__(self, options: "RemoteSampler") -> None:
        self.options = options
        self.users = 0
        self.pool = Pool(options)
        self.condition = threading.Condition()
        self.installed: Weights | None = None
        self.readers = 0
        self.writers = 0  # that wait or install
        self.installing = False
        self.folder: WeightsFolder | None = None
        self.labels: dict[Any, str] = {}  # of the weights that engines still need
        self.name, self.count = token_hex(4), 0
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.work, name="rollout servers", daemon=True)
        self.thread.start()

    @classmethod
    def of(cls, options: "RemoteSampler") -> "Fleet":
        """Returns the fleet of these servers; `release` ends it after its last user."""
        key = (type(options), options.servers)
        with LOCK:
            fleet = FLEETS.get(key)
            if fleet is None:
                fleet = FLEETS[key] = cls(options)
            fleet.users += 1
            return fleet

    def release(self, user: Any) -> None:
        """Ends the use of an engine, and with the last one the fleet."""
        with LOCK:
            self.users -= 1
            self.labels.pop(user, None)
            if self.users:
                return
            FLEETS.pop((type(self.options), self.options.servers), None)
        self.close()

    def work(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def start(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Starts work in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Runs work in the loop and returns its result; cancels it if this thread is stopped."""
        future = self.start(work)
        try:
            return future.result()
        finally:
            future.cancel()

    def label(self, version: int) -> str:
        """Returns a name for weights that no others have, in this run or another."""
        self.count += 1
        return f"step-{version}-{self.name}-{self.count}"

    def write(self, policy: Any, params: Any, label: str) -> Exported:
        """Writes weights into the folder of this fleet."""
        if self.folder is None:
            parent = getattr(self.options, "weights_folder", None)
            self.folder = WeightsFolder(Path(parent or Path(tempfile.gettempdir(), "rl4p")))
        return self.folder.write(policy, params, label)

    def install(self, user: Any, set_weights: Callable[[], Weights]) -> None:
        """Gives the servers the weights of an engine, after the calls that are under way.

        Args:
          set_weights: makes the weights those of the engine and returns them.
        """
        self.loop.call_soon_threadsafe(self.pool.stop, lambda call: call.may_stop)
        with self.condition:
            self.writers += 1
            try:
                while self.installing or self.readers:
                    self.condition.wait()
                self.installing = True
            finally:
                self.writers -= 1
                self.condition.notify_all()
        weights = set_weights()
        self.replace(weights)
        self.labels[user] = weights.label
        if self.folder is not None:
            self.folder.keep(set(self.labels.values()))

    def replace(self, weights: Weights) -> None:
        """Gives the servers weights, while `installing`."""
        found = None
        try:
            self.run(self.pool.install(weights))
            found = weights
        finally:
            with self.condition:
                self.installed, self.installing = found, False
                self.condition.notify_all()

    @contextmanager
    def using(self, weights_of: Callable[[], Weights]) -> Iterator[Weights]:
        """Holds the weights of an engine at the servers; gives them back to them if necessary."""
        while True:
            with self.condition:
                while self.installing or self.writers:
                    self.condition.wait()
                weights = weights_of()
                if self.installed is weights:
                    self.readers += 1
                    break
                if self.readers:
                    self.condition.wait()
                    continue
                self.installing = True
            self.replace(weights)
        try:
            yield weights
        finally:
            with self.condition:
                self.readers -= 1
                self.condition.notify_all()

    def close(self) -> None:
        """Ends the connections and the thread, and deletes the folder."""
        if not self.loop.is_closed():
            closing = self.start(self.pool.close())
            closing.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self.loop.stop))
            self.thread.join(timeout=SECONDS_TO_CLOSE)
            if not self.thread.is_alive():
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
                self.loop.close()
        if self.folder is not None:
            self.folder.close()
            self.folder = None


@atexit.register
def close_all() -> None:
    """Deletes the folders of weights at the end of the process."""
    for fleet in list(FLEETS.values()):
        fleet.close()
