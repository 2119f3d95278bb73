"""Active requests: they connect the scheduler's thread with the event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

from rl4p.errors import InputError, RunError
from rl4p.rollout.engine.batch import Chunk
from rl4p.rollout.engine.sequence import TokenSequence
from rl4p.serving.choice import Choice, CompletionOptions
from rl4p.serving.detokenizer import Detokenizer
from rl4p.serving.http_errors import ClientDisconnectError, HttpError
from rl4p.serving.scheduler import Scheduler
from rl4p.serving.seeds import key_data


class ReadyQueue:
    """A queue of requests with new tokens, from the scheduler's thread to the event loop.

    The loop is woken once per device call and not once per request, because waking it costs more
    than all other work on the new tokens.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: deque[ActiveRequest] = deque()
        self.woken = False

    def put(self, active: "ActiveRequest") -> None:
        """Adds a request, for which the loop then calls `read`. Any thread may call this."""
        self.waiting.append(active)
        if not self.woken:
            self.woken = True
            self.loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        self.woken = False  # first: a request that is added from now on wakes the loop again
        while self.waiting:
            self.waiting.popleft().read()


class ActiveRequest:
    """The choices of a request while they are generated, in the order of prompts and seeds.

    Args:
      stream: whether tokens are sent to the client as they arrive.
    """

    def __init__(
        self,
        queue: ReadyQueue,
        detokenizer: Detokenizer,
        options: CompletionOptions,
        *,
        stream: bool,
    ) -> None:
        self.queue, self.detokenizer = queue, detokenizer
        self.options, self.stream = options, stream
        self.choices: list[Choice] = []
        self.submissions: list[tuple[Scheduler, Any, range]] = []
        self.inbox: deque[tuple[int, list[Chunk]]] = deque()
        self.changed: dict[int, None] = {}  # the choices with new tokens, in order
        self.unfinished = 0
        self.waiter: asyncio.Future[None] | None = None
        self.disconnected = False
        self.error: Exception | None = None

    def submit(
        self, scheduler: Scheduler, prompts: Sequence[Sequence[int]], seeds: Sequence[Sequence[int]]
    ) -> None:
        """Submits all prompts to the scheduler, each with its seeds.

        Raises:
          HttpError: the scheduler refuses one.
        """
        options = self.options
        try:
            for tokens, prompt_seeds in zip(prompts, seeds, strict=True):
                # A stop string ends a single choice, so each choice is then submitted alone.
                batches = [[seed] for seed in prompt_seeds] if options.stops else [prompt_seeds]
                for batch in batches:
                    first = len(self.choices)
                    for _ in batch:
                        self.choices.append(Choice(self.detokenizer, options, stream=self.stream))
                    self.unfinished += len(batch)
                    sequences = [
                        TokenSequence(
                            context=tokens,
                            key=key_data(seed),
                            max_tokens=options.max_tokens,
                            sampling=options.sampling,
                            end_ids=options.end_ids,
                            min_tokens=options.min_tokens,
                            alternatives=options.alternatives or 0,
                        )
                        for seed in batch
                    ]
                    submission = scheduler.submit(sequences, self.receiver(first), self.fail)
                    numbers = range(first, first + len(batch))
                    self.submissions.append((scheduler, submission, numbers))
        except (InputError, RunError) as error:
            self.cancel()
            status = 400 if isinstance(error, InputError) else 503
            raise HttpError(str(error), status=status) from None

    def receiver(self, first: int) -> Any:
        """Returns the function that receives new tokens; the scheduler calls it in its thread."""
        every = self.stream or bool(self.options.stops)

        def receive(chunks: list[Chunk]) -> None:
            self.inbox.append((first, chunks))
            if every or any(chunk.finish is not None for chunk in chunks):
                self.queue.put(self)

        return receive

    def fail(self, error: Exception) -> None:
        """Ends the request with an error; the scheduler calls this in its thread."""
        self.error = error
        self.queue.put(self)

    def read(self) -> None:
        """Adds the tokens that have arrived to the choices, and wakes the request."""
        while self.inbox:
            first, chunks = self.inbox.popleft()
            for chunk in chunks:
                number = first + chunk.sequence.index
                choice = self.choices[number]
                if choice.finish is not None:
                    continue
                choice.add(chunk)
                self.changed[number] = None
                if choice.finish is not None:
                    self.unfinished -= 1
                    if chunk.finish is None:  # a stop string ended it
                        self.cancel(number)
        if self.unfinished == 0 or self.error or (self.stream and self.changed):
            self.wake()

    def wake(self) -> None:
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)

    async def wait(self) -> None:
        """Waits for `wake`.

        Raises:
          ClientDisconnectError: the client has closed the connection.
          HttpError: the device or the weights failed.
        """
        if not self.disconnected and self.error is None:
            self.waiter = self.queue.loop.create_future()
            await self.waiter
        if self.disconnected:
            raise ClientDisconnectError
        if self.error is not None:
            raise HttpError(str(self.error), status=503)

    async def finished(self) -> list[Choice]:
        """Returns the choices once all have ended."""
        while self.unfinished:
            await self.wait()
        return self.choices

    async def changes(self) -> AsyncIterator[list[tuple[int, Choice]]]:
        """Yields the choices that have new tokens, with their numbers, until all have ended."""
        while self.unfinished or self.changed:
            if not self.changed:
                await self.wait()
            changed, self.changed = self.changed, {}
            yield [(index, self.choices[index]) for index in changed]

    def disconnect(self) -> None:
        """Cancels the request, because its client has closed the connection."""
        self.disconnected = True
        self.cancel()
        self.wake()

    def cancel(self, index: int | None = None) -> None:
        """Frees the slots of a choice, or of all unfinished choices."""
        for scheduler, submission, numbers in self.submissions:
            if index is None or index in numbers:
                scheduler.cancel(submission)
