"""Requests that are being generated, between the scheduler's thread and the event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from rl4p.errors import InputError, RunError
from rl4p.rollout.engine.batch import Chunk
from rl4p.rollout.engine.sequence import TokenSequence
from rl4p.serving.completion import Completion, Wanted
from rl4p.serving.refusals import ClientGoneError, RefusalError
from rl4p.serving.scheduler import Scheduler
from rl4p.serving.seeds import key_data
from rl4p.serving.text import Texts


class Mailbox:
    """Hands what the scheduler delivers to the event loop: once per device call, not per request.

    Waking the loop costs more than all else that a delivery does.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: deque[Live] = deque()
        self.woken = False

    def post(self, live: "Live") -> None:
        """Has the loop call `live.read`. It is called from the scheduler's thread."""
        self.waiting.append(live)
        if not self.woken:
            self.woken = True
            self.loop.call_soon_threadsafe(self.empty)

    def empty(self) -> None:
        self.woken = False  # before the first is taken: whoever comes later wakes the loop again
        while self.waiting:
            self.waiting.popleft().read()


class Live:
    """A request's completions, of all its prompts, in the order of prompts and seeds.

    Args:
      stream: whether its tokens are sent as they arrive.
    """

    def __init__(self, mailbox: Mailbox, texts: Texts, wanted: Wanted, *, stream: bool) -> None:
        self.mailbox, self.texts, self.wanted, self.stream = mailbox, texts, wanted, stream
        self.completions: list[Completion] = []
        self.submissions: list[tuple[Scheduler, Any, range]] = []
        self.inbox: deque[tuple[int, list[Chunk]]] = deque()
        self.changed: dict[int, None] = {}  # the completions with new tokens, in order
        self.growing = 0
        self.waiter: asyncio.Future[None] | None = None
        self.gone = False
        self.error: Exception | None = None

    def submit(
        self, scheduler: Scheduler, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]
    ) -> None:
        """Submits the sequences of all prompts, each with its seeds.

        Raises:
          RefusalError: the scheduler does not take them.
        """
        wanted = self.wanted
        try:
            for tokens, own in zip(prompts, seeds, strict=True):
                # A stop string ends one completion, so each then needs a submission of its own.
                for part in [[seed] for seed in own] if wanted.stops else [own]:
                    first = len(self.completions)
                    for _ in part:
                        self.completions.append(Completion(self.texts, wanted, stream=self.stream))
                    self.growing += len(part)
                    sequences = [
                        TokenSequence(
                            context=tokens,
                            key=key_data(seed),
                            max_tokens=wanted.max_tokens,
                            sampling=wanted.sampling,
                            end_ids=wanted.end_ids,
                            min_tokens=wanted.min_tokens,
                            alternatives=wanted.alternatives,
                        )
                        for seed in part
                    ]
                    submission = scheduler.submit(sequences, self.receiver(first), self.fail)
                    numbers = range(first, first + len(part))
                    self.submissions.append((scheduler, submission, numbers))
        except (InputError, RunError) as error:
            self.cancel()
            status = 400 if isinstance(error, InputError) else 503
            raise RefusalError(str(error), status=status) from None

    def receiver(self, first: int) -> Any:
        """Returns what the scheduler calls, in its thread, with new tokens of completions."""
        every = self.stream or bool(self.wanted.stops)

        def receive(chunks: list[Chunk]) -> None:
            self.inbox.append((first, chunks))
            if every or any(chunk.finish is not None for chunk in chunks):
                self.mailbox.post(self)

        return receive

    def fail(self, error: Exception) -> None:
        """Ends the request with an error; the scheduler calls it in its thread."""
        self.error = error
        self.mailbox.post(self)

    def read(self) -> None:
        """Adds what has arrived to the completions, and wakes the request if it waits for that."""
        while self.inbox:
            first, chunks = self.inbox.popleft()
            for chunk in chunks:
                number = first + chunk.sequence.index
                completion = self.completions[number]
                if completion.finish is not None:
                    continue
                completion.add(chunk)
                self.changed[number] = None
                if completion.finish is not None:
                    self.growing -= 1
                    if chunk.finish is None:  # a stop string ended it
                        self.cancel(number)
        if self.growing == 0 or self.error or (self.stream and self.changed):
            self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self) -> None:
        """Waits for `wake`.

        Raises:
          ClientGoneError: the client has closed the connection.
          RefusalError: the device or the weights failed.
        """
        if not self.gone and self.error is None:
            self.waiter = self.mailbox.loop.create_future()
            await self.waiter
        if self.gone:
            raise ClientGoneError
        if self.error is not None:
            raise RefusalError(str(self.error), status=503)

    async def finished(self) -> list[Completion]:
        """Returns the completions once all have ended."""
        while self.growing:
            await self.wait()
        return self.completions

    async def changes(self) -> AsyncIterator[list[tuple[int, Completion]]]:
        """Yields the completions that have new tokens, with their numbers, until all have ended."""
        while self.growing or self.changed:
            if not self.changed:
                await self.wait()
            changed, self.changed = self.changed, {}
            yield [(index, self.completions[index]) for index in changed]

    def leave(self) -> None:
        """Gives the request up, because its client has gone."""
        self.gone = True
        self.cancel()
        self.wake()

    def cancel(self, index: int | None = None) -> None:
        """Frees the slots of a completion, or of all that still grow."""
        for scheduler, submission, numbers in self.submissions:
            if index is None or index in numbers:
                scheduler.cancel(submission)
