"""Pauses and new weights, which the endpoints of SGLang and vLLM share."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

from rl4p.errors import InputError
from rl4p.serving.server_state import ServerState
from rl4p.serving.weights import checksums, replacement
from rl4p.types import Params

LONGEST = 3600.0  # seconds; a pause that waits for running requests gives up after them
UNFINISHED = "+unfinished"

Mode = Literal["keep", "wait", "abort"]


class WeightUpdates:
    """Changes of the served weights, one at a time.

    Blocking calls run in separate threads, so that the server responds meanwhile.

    Attributes:
      recompute: whether an update computes the keys and values of running requests again.
      unfinished: whether an update of vLLM's protocol has begun and not ended.
      count: the number of updates so far.
    """

    def __init__(self, server: ServerState) -> None:
        self.server = server
        self.threads = ThreadPoolExecutor(4, "updates")
        self.lock = asyncio.Lock()
        self.recompute = True
        self.unfinished = False
        self.count = 0

    async def in_thread(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        loop = self.server.queue.loop
        return await loop.run_in_executor(self.threads, lambda: call(*arguments, **options))

    async def pause(self, mode: Mode, *, recompute: bool) -> None:
        """StopStrings decoding.

        Args:
          mode: what happens to running requests: they are kept as they are, waited for, or aborted.
          recompute: whether an update during the pause computes their keys and values again.
        """
        await self.in_thread(self.server.scheduler.pause, mode, LONGEST)
        self.recompute = recompute

    def resume(self) -> None:
        """Goes on with decoding."""
        self.server.scheduler.resume()
        self.recompute = True

    async def replace(self, path: str, version: str | None) -> str:
        """Replaces the weights by the tensors in a folder, and returns their version.

        The folder is checked before anything changes.

        Args:
          version: the name of the new weights; None counts updates.

        Raises:
          InputError: the folder cannot be used; the old weights are still server.
          RunError: the update failed after it began; the server answers no requests until one
            succeeds.
        """
        if not Path(path).is_absolute():
            raise InputError("The path of the weights must be a folder, written from the root on.")
        async with self.lock:
            load = await self.in_thread(replacement, Path(path), self.server.policy)
            version = version or f"update-{self.count + 1}"
            scheduler = self.server.scheduler
            await self.in_thread(scheduler.replace, load, version, recompute=self.recompute)
            self.count += 1
            self.server.source = path
        return version

    def rename(self, version: str) -> None:
        """Changes the version of the weights, and not the weights."""
        self.server.scheduler.rename(version)

    async def checksums(self) -> dict[str, str]:
        """Returns the SHA-256 of each tensor, by its name in the files of the model.

        Raises:
          InputError: an update failed, so that the weights have no version.
        """
        server = self.server
        if server.scheduler.broken is not None:
            raise InputError(server.scheduler.broken)
        sums: dict[str, str] = {}

        def read(params: Params) -> Params:
            sums.update(checksums(server.policy, params))
            return params

        async with self.lock:  # between device calls, where nothing else changes the weights
            version = server.scheduler.version
            await self.in_thread(server.scheduler.replace, read, version, recompute=False)
        return sums

    def close(self) -> None:
        self.threads.shutdown(wait=False, cancel_futures=True)


def checksum_of(sums: dict[str, str]) -> str:
    """Returns one checksum for the checksums of all tensors."""
    return hashlib.sha256(json.dumps(sorted(sums.items())).encode()).hexdigest()
