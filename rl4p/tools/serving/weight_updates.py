"""Pauses and new weights, which the endpoints of SGLang and vLLM share."""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rl4p.base.errors import InputError, RunError
from rl4p.engine.driver import Lease
from rl4p.engine.serving.app import ServerState
from rl4p.engine.serving.body import Body, HttpError, Name
from rl4p.model.model_tensors import held_tensors
from rl4p.model.tensor_files import Algorithm
from rl4p.tools.serving.weights import Sleep, checksums, replacement

LONGEST = 3600.0  # seconds; a pause that waits for running requests gives up after them
UNFINISHED = "+unfinished"
ASLEEP = "The server sleeps: post /wake_up or /resume_memory_occupation first."

CONTESTED = (
    "Another weight update was started meanwhile, so it is not clear whose weights these are: "
    "begin again. With ?owner=NAME, clients do not disturb each other."
)

Mode = Literal["keep", "wait", "abort"]


class OwnerQuery(Body):
    """The query of a pause or of an update.

    Attributes:
      owner: the name of the client, so that others do not end its pause; "" for those without.
    """

    owner: Name = ""


class CheckWeights(Body):
    """The body of /weight_checker and of /weights_checker; `algorithm` is no part of these APIs."""

    action: Literal["checksum"] = "checksum"
    algorithm: Algorithm = "sha256"


@dataclass(frozen=True, kw_only=True)
class Pause:
    """A pause of a client."""

    lease: Lease
    recompute: bool  # whether an update computes the keys and values of running requests again


@dataclass(kw_only=True)
class Transfer:
    """An update that has begun and not ended, of a protocol with a request for each step."""

    lease: Lease
    owner: str  # the name of the client; requests without a name are of the owner ""
    before: str  # the version of the weights before it
    loaded: bool | None = None  # whether the last folder was loaded; None before the first
    # Whether another request tried to begin an update for the same owner, after which it is not
    # clear whose folders arrive.
    contested: bool = False


class WeightUpdates:
    """Changes of the served weights, one at a time.

    Decoding pauses from the beginning of an update to its end, by a lease of its own: the end of
    another update or pause cannot start it again. Blocking calls run in separate threads, so that
    the server responds meanwhile.
    """

    def __init__(self, server: ServerState) -> None:
        self.server, self.scheduler = server, server.scheduler
        self.threads = ThreadPoolExecutor(4, "updates")
        self.lock = asyncio.Lock()  # is held by an update from its pause to its end
        self.pauses: dict[str, Pause] = {}  # of clients, by the name of their owner
        self.transfer: Transfer | None = None  # the update whose steps are requests
        # The names of tensors that a failed update may have replaced or not, or that a sleep has
        # given back.
        self.torn: frozenset[str] = frozenset()
        self.sleeper = Sleep(server.scheduler)
        self.sleeping: Lease | None = None  # the lease of a sleep
        self.count = 0  # of updates so far

    async def in_thread(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        loop = self.server.queue.loop
        return await loop.run_in_executor(self.threads, lambda: call(*arguments, **options))

    @property
    def recompute(self) -> bool:
        """Whether an update computes the keys and values of running requests again.

        It does unless all pauses say that it does not: a request is never continued with the keys
        and values of other weights because of a second pause.
        """
        return not self.pauses or any(pause.recompute for pause in self.pauses.values())

    async def pause(self, owner: str, mode: Mode, *, recompute: bool) -> None:
        """Stops decoding until `resume` of the same owner. A second pause replaces the first.

        Args:
          mode: what happens to running requests: they are kept as they are, waited for, or aborted.
          recompute: whether an update during the pause computes their keys and values again.

        Raises:
          HttpError: the pause cannot begin.
        """
        try:
            if mode == "wait":
                async with self.lock:
                    lease = await self.in_thread(self.scheduler.pause, mode, LONGEST)
            else:
                lease = await self.in_thread(self.scheduler.pause, mode, LONGEST)
        except RunError as error:
            raise HttpError(str(error), status=503) from None
        self.resume(owner)
        self.pauses[owner] = Pause(lease=lease, recompute=recompute)

    def resume(self, owner: str) -> None:
        """Ends the pause of an owner; decoding goes on after the last pause and update."""
        if pause := self.pauses.pop(owner, None):
            self.scheduler.resume(pause.lease)

    async def sleep(self, *, keep: bool) -> None:
        """Gives the memory of weights and cache back until `wake`; running requests are aborted.

        Args:
          keep: whether `wake` restores the weights. Otherwise all of them must be loaded then.

        Raises:
          HttpError: an update has begun, or decoding does not stop.
        """
        async with self.lock:
            if self.sleeping is not None:
                return
            try:
                lease = await self.hold(abort=True)
            except (InputError, RunError) as error:
                raise HttpError(str(error), status=409) from None
            await self.in_thread(self.sleeper.begin, keep=keep)
            self.sleeping = lease
            if not keep:
                config = self.server.policy.decoder.config
                self.torn = frozenset(x.name for x in held_tensors(config, stacked=True))

    async def wake(self) -> None:
        """Takes the memory again, and ends the pause of the sleep."""
        async with self.lock:
            if self.sleeping is not None:
                await self.in_thread(self.sleeper.end)
                self.scheduler.resume(self.sleeping)
                self.sleeping = None

    async def hold(self, *, abort: bool = False) -> Lease:
        """Stops decoding for an update, and returns the lease; the caller has the lock.

        It waits for the running requests, except for those that a pause of a client keeps. Which
        these are is known to the scheduler alone: a pause may end before the lease begins.

        Args:
          abort: whether running requests are aborted instead.
        """
        if self.transfer is not None:
            raise InputError("Another weight update has begun: it ends with /finish_weight_update.")
        if self.sleeping is not None:
            raise InputError(ASLEEP)
        mode: Mode = "abort" if abort else "wait"
        return await self.in_thread(self.scheduler.pause, mode, LONGEST)

    @asynccontextmanager
    async def update(self, owner: str, *, abort: bool, keeps: bool) -> AsyncIterator[None]:
        """Keeps all other updates out, and stops decoding, until the end.

        Args:
          abort: whether running requests are aborted.
          keeps: whether a pause of the owner remains after an update that succeeds.
        """
        async with self.lock:
            lease = await self.hold(abort=abort)
            try:
                yield
            except BaseException:
                keeps = False
                raise
            finally:
                if keeps and owner not in self.pauses:
                    self.pauses[owner] = Pause(lease=lease, recompute=True)
                else:
                    self.scheduler.resume(lease)

    async def begin(self, owner: str) -> None:
        """Begins an update whose steps are requests.

        Raises:
          HttpError: another one has begun, or decoding does not stop.
        """
        async with self.lock:
            if self.transfer is not None:
                self.transfer.contested |= owner == self.transfer.owner
                raise HttpError(
                    "Another weight update has begun: it ends with /finish_weight_update.",
                    status=409,
                )
            if self.sleeping is not None:
                raise HttpError(ASLEEP, status=409)
            try:
                lease = await self.hold()
            except RunError as error:
                raise HttpError(str(error), status=503) from None
            before = self.scheduler.version.removesuffix(UNFINISHED)
            self.transfer = Transfer(lease=lease, owner=owner, before=before)

    async def add(self, owner: str, path: str) -> None:
        """Loads a folder in the update that `begin` began.

        Raises:
          HttpError: no update has begun, or not by this owner.
          InputError: the folder cannot be used; nothing has changed.
          RunError: loading failed.
        """
        async with self.lock:
            transfer = self.owned(owner)
            if transfer.contested:
                raise HttpError(CONTESTED, status=409)
            transfer.loaded = False
            await self.replace(path, transfer.before + UNFINISHED)
            transfer.loaded = True

    async def finish(self, owner: str, version: str | None) -> str:
        """Ends the update that `begin` began, and returns the version of the weights.

        It has the name `version` if folders were loaded, and the last without an error.

        Raises:
          HttpError: no update has begun, or not by this owner; or the weights are not those that
            `version` names. In the last case the update has ended.
        """
        async with self.lock:
            transfer = self.owned(owner)
            self.transfer = None
            try:
                if self.scheduler.broken is not None:
                    raise HttpError(self.scheduler.broken, status=500)
                if transfer.contested and version is not None:
                    raise HttpError(CONTESTED, status=409)
                if transfer.loaded:
                    self.scheduler.version = version or f"update-{self.count}"
                elif version is not None:
                    raise HttpError(
                        f"The update loaded no weights after its last error: the version stays "
                        f"{self.scheduler.version}."
                    )
            finally:
                self.scheduler.resume(transfer.lease)  # after the version: tokens are drawn now
            return self.scheduler.version

    def owned(self, owner: str) -> Transfer:
        """Returns the update that this owner has begun.

        Raises:
          HttpError: no update has begun, or it is of another owner.
        """
        if self.transfer is None:
            raise HttpError("No weight update has started: post /start_weight_update first.")
        if owner != self.transfer.owner:
            raise HttpError("The weight update is of another owner.", status=409)
        return self.transfer

    async def replace(self, path: str, version: str | None) -> str:
        """Replaces the weights by the tensors in a folder, and returns their version.

        The folder is checked before anything changes. The caller has the lock, and a lease.

        Args:
          version: the name of the new weights; None counts updates.

        Raises:
          InputError: the folder cannot be used; the old weights are still served.
          RunError: the update failed after it began; the server answers no requests until one
            succeeds that has all tensors of this one.
        """
        if not Path(path).is_absolute():
            raise InputError("The path of the weights must be a folder, written from the root on.")
        with closing(await self.in_thread(replacement, Path(path), self.server.policy)) as load:
            if absent := sorted(self.torn - load.names):
                raise InputError(
                    f"The last update failed after it began, so the next one needs all of its "
                    f"tensors. {path} lacks {len(absent)} of them, such as {absent[0]}."
                )
            version = version or f"update-{self.count + 1}"
            try:
                await self.in_thread(
                    self.scheduler.replace, load, version, recompute=self.recompute
                )
            except RunError:
                self.torn |= load.names
                raise
        self.torn = frozenset()
        self.count += 1
        self.server.source = path
        return version

    async def rename(self, version: str) -> None:
        """Changes the version of the weights, and not the weights, unless an update has begun."""
        async with self.lock:
            if self.transfer is not None:
                raise InputError("An update names its weights with /finish_weight_update.")
            self.scheduler.version = version

    async def checksums(self, algorithm: Algorithm) -> dict[str, str]:
        """Returns the checksum of each tensor, by its name in the files of the model."""

        def read() -> dict[str, str]:
            return checksums(self.server.policy, self.scheduler.params, algorithm)

        async with self.lock:  # between device calls, where nothing else changes the weights
            if self.sleeping is not None:
                raise InputError(ASLEEP)
            if self.scheduler.broken is not None:
                raise InputError(self.scheduler.broken)
            return await self.in_thread(lambda: self.scheduler.run_between_calls(read).result())

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)


def checksum_of(sums: dict[str, str]) -> str:
    """Returns one checksum for the checksums of all tensors."""
    return hashlib.sha256(json.dumps(sorted(sums.items())).encode()).hexdigest()
