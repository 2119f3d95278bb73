"""Episodes as coroutines of one event loop, and their requests as a source for an engine.

The event loop has a thread of its own, so that environments answer while the engine decodes. The
thread of the rollout decodes (`engine.complete_all`).

Of several processes, process 0 runs the episodes and sends their requests to the others
(`ForwardedRequests`), because all processes must decode them together.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import jax

from rl4p.distributed.processes import agreed
from rl4p.protocols.engine import Completion, Engine, Request, complete_all

Result = TypeVar("Result")


class EpisodeLoop:
    """A `RequestSource` whose requests come from coroutines.

    Args:
      most: the most requests that are unfinished at a time.
      longest: the most tokens of a context and its completion.
      count_turn: is called in the event loop after each completion.

    Attributes:
      idle: the seconds in which no request was unfinished.
      ended: the tokens that episodes have ended with, for the next request (`Request.ended`).
    """

    def __init__(
        self, most: int, longest: int, count_turn: Callable[[], None] = lambda: None
    ) -> None:
        self.most, self.longest, self.count_turn = most, longest, count_turn
        self.requests: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self.futures: dict[int, asyncio.Future[Completion]] = {}  # by the id of a request
        self.loop = asyncio.new_event_loop()
        self.ended: list[tuple[int, ...]] = []
        self.idle = 0.0

    def run(
        self,
        engine: Engine,
        episodes: Sequence[Coroutine[Any, Any, Result]],
        *,
        greedy: bool,
        around: AbstractAsyncContextManager[Any] | None = None,
    ) -> list[Result]:
        """Runs episodes to their ends; returns their results in order.

        Args:
          around: what is open in the event loop while they run.

        An exception of the engine or of an episode ends all episodes, and is raised here.
        """
        results: list[Any] = []
        ended: list[BaseException] = []

        async def everything() -> None:
            async with around or nullcontext():
                results.extend(await asyncio.gather(*episodes))

        def cancel() -> set[asyncio.Task[Any]]:
            tasks = asyncio.all_tasks(self.loop)
            for task in tasks:
                task.cancel()
            return tasks

        async def settled(tasks: set[asyncio.Task[Any]]) -> None:
            await asyncio.gather(*tasks, return_exceptions=True)

        def work() -> None:
            try:
                try:
                    self.loop.run_until_complete(everything())
                except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
                    ended.append(error)
                # What is left ends here, except threads of the loop's executor, which are not
                # waited for, since a call of an environment may hang.
                self.loop.run_until_complete(settled(cancel()))
                self.loop.run_until_complete(self.loop.shutdown_asyncgens())
                self.loop.close()
            finally:
                self.requests.put(None)  # tells the engine that no request will come

        thread = threading.Thread(target=work, name="episodes", daemon=True)
        thread.start()
        try:
            complete_all(engine, self, greedy=greedy)
        except BaseException:
            self.call(cancel)
            raise
        finally:
            thread.join()
        if ended:
            raise ended[0]
        return results

    def call(self, function: Callable[[], Any]) -> None:
        """Calls a function in the event loop, unless it has ended."""
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    async def complete(self, request: Request) -> Completion:
        """Returns the completion of a request with one key; called in a coroutine."""
        request, self.ended = replace(request, ended=tuple(self.ended)), []
        future = self.futures[id(request)] = self.loop.create_future()
        self.requests.put(request)
        completion = await future
        self.count_turn()
        return completion

    def take(self, *, wait: bool) -> Sequence[Request]:
        taken: list[Request] = []
        while True:
            began = time.monotonic()
            try:
                request = self.requests.get(block=wait and not taken)
            except queue.Empty:
                break
            self.idle += time.monotonic() - began
            if request is None:  # every later call returns at once, too
                self.requests.put(None)
                break
            taken.append(request)
        if jax.process_count() > 1:
            agreed([request.to_dict() for request in taken])
        return taken

    def give(self, request: Request, completion: Completion) -> None:
        future = self.futures.pop(id(request))

        def resolve() -> None:
            if not future.done():
                future.set_result(completion)

        self.call(resolve)


class AdaptiveConcurrency:
    """The number of simultaneous episodes, found by hill climbing on the turns per second.

    It begins with `least`, and tries twice and half the best number so far, within the bounds. A
    larger number must give 0.5% more turns per second, since each episode takes memory, in one of
    two trials, as the first may compile programs. A smaller number must give as many in both; its
    trials are slow, and therefore the last ones. Trials become rarer while they fail.

    Attributes:
      number: the number that acts, which may be on trial.
      best: the best number so far.
    """

    GAIN, PAUSE, LONGEST_PAUSE = 1.005, 4, 32  # pauses are numbers of measurements

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most
        self.number = self.best = least
        self.rate = 0.0  # turns per second with the best number
        self.up, self.repeated = True, False  # where the next trial goes; of a trial
        self.left, self.pause = 0, self.PAUSE

    def neighbour(self, up: bool) -> int:
        """Returns the next number in a direction; the best one at a bound."""
        return min(2 * self.best, self.most) if up else max(self.best // 2, self.least)

    def learn(self, rate: float) -> None:
        """Learns the turns per second with `number`, and chooses the next number."""
        up = self.number > self.best
        passed = rate > self.GAIN * self.rate if up else rate >= self.rate
        if self.number == self.best:
            self.rate = (self.rate + rate) / 2 if self.rate else rate
            self.left -= 1
            if self.left < 0:
                self.up = self.up if self.neighbour(self.up) != self.best else not self.up
                self.number = self.neighbour(self.up)
        elif passed != up and not self.repeated:  # one more trial decides
            self.repeated = True
        elif passed:
            self.best, self.rate, self.repeated = self.number, rate, False
            self.left = self.pause = self.PAUSE
            self.number = self.neighbour(up)
        else:
            self.up = not up or self.pause < self.LONGEST_PAUSE
            self.number, self.repeated = self.best, False
            self.left, self.pause = self.pause, min(2 * self.pause, self.LONGEST_PAUSE)


class Places:
    """Lets `concurrency.number` episodes of a call run at a time, also while it changes.

    A place is the right of an episode to run. It enters the context of this object to take one.
    Turns per second are measured over windows of turns. In a call of many episodes a window ends
    while others wait, so that every place is taken. After a change, the turns of the first round
    are left out. A call of fewer than `ROUNDS` episodes for each place is one window, its end
    included, because there more places mean fewer rounds.
    """

    ROUNDS, SHORTEST = 8, 32  # the fewest turns of a window

    def __init__(self, concurrency: AdaptiveConcurrency, episodes: int) -> None:
        self.concurrency, self.episodes, self.waiting = concurrency, episodes, episodes
        self.number = self.count = concurrency.number  # the places wanted, and those that exist
        self.free = asyncio.Semaphore(self.count)
        self.whole, self.turns, self.left_out = True, 0, 0  # whether the call is one window so far
        self.began: float | None = None

    async def __aenter__(self) -> None:
        await self.free.acquire()
        self.waiting -= 1
        self.began = self.began or time.monotonic()

    async def __aexit__(self, *error: object) -> None:
        if self.count > self.concurrency.number:
            self.count -= 1
        else:
            self.free.release()

    def count_turn(self) -> None:
        """Counts a turn, and changes the number of places after a window."""
        self.turns += 1
        number = self.concurrency.number
        if number != self.number or self.count > number:  # or another call has changed it
            self.begin_window()
        elif self.left_out:
            self.left_out -= 1
            if not self.left_out:
                self.turns, self.began = 0, time.monotonic()
        elif (
            self.waiting
            and self.turns >= max(self.SHORTEST, 2 * number)
            and self.episodes >= self.ROUNDS * number
        ):
            self.measure()
            self.begin_window()

    def begin_window(self) -> None:
        number = self.concurrency.number
        self.left_out = number if number != self.number or self.count > number else 0
        self.number, self.whole, self.turns, self.began = number, False, 0, time.monotonic()
        while self.count < number:
            self.count += 1
            self.free.release()

    def measure(self) -> None:
        seconds = time.monotonic() - (self.began or 0.0)
        self.concurrency.learn(self.turns / max(seconds, 1e-9))

    def end(self) -> None:
        """Measures a call that was one window, if fewer places would have held episodes back."""
        same = self.whole and self.number == self.concurrency.number
        if same and self.turns and 2 * self.episodes > self.number:
            self.measure()


@dataclass(eq=False)
class ForwardedRequests:
    """A `RequestSource` with the requests of the `EpisodeLoop` in process 0, for other processes.

    Args:
      most, longest: as in `EpisodeLoop`.
    """

    most: int
    longest: int

    def take(self, *, wait: bool) -> Sequence[Request]:
        return [Request.from_dict(row) for row in agreed(None)]

    def give(self, request: Request, completion: Completion) -> None:
        """Does nothing, since process 0 has the same completion."""


async def within(seconds: float | None, call: Callable[[], Awaitable[Result]]) -> Result:
    """Returns the result of a call, which is cancelled at the end of its time.

    Raises:
      TimeoutError: the time was over.
    """
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await call()
    except TimeoutError:
        if deadline.expired():
            raise TimeoutError(f"no answer within {seconds} s") from None
        raise
