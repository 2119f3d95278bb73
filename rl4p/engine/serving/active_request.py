"""Active requests: they connect the scheduler's thread with the event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from rl4p.base.errors import InputError, RunError
from rl4p.engine.detokenizer import Detokenizer
from rl4p.engine.driver import Submission
from rl4p.engine.sequence import Chunk, TokenSequence, key_data
from rl4p.engine.serving.choice import Choice, CompletionOptions
from rl4p.engine.serving.responses import ClientDisconnectError, HttpError
from rl4p.engine.serving.scheduler import Scheduler


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
      count: receives changes of the number of unfinished sequences and scores.
      unsent: returns the bytes of a stream for which its client has no room.

    Attributes:
      scores: the log-probabilities of each prompt, if they are computed.
      unfinished: the number of sequences and scores that have not ended.
      open: how many of them the scheduler still works on.
    """

    def __init__(
        self,
        queue: ReadyQueue,
        detokenizer: Detokenizer,
        options: CompletionOptions,
        *,
        stream: bool,
        count: Callable[[int], None] = lambda change: None,
        unsent: Callable[[], int] = lambda: 0,
    ) -> None:
        self.queue, self.detokenizer, self.count, self.unsent = queue, detokenizer, count, unsent
        self.options, self.stream = options, stream
        self.choices: list[Choice] = []
        self.submissions: list[tuple[Scheduler, Submission, range]] = []
        self.inbox: deque[Callable[[], None]] = deque()
        self.changed: dict[int, None] = {}  # the choices with new tokens, in order
        self.scores: list[list[float]] = []
        self.unfinished = self.open = 0
        self.waiter: asyncio.Future[None] | None = None
        self.disconnected = False
        self.error: Exception | None = None

    def submit(
        self,
        scheduler: Scheduler,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[Sequence[int]],
        *,
        scored: bool = False,
    ) -> None:
        """Submits all prompts to the scheduler, each with its seeds.

        Args:
          scored: whether log-probabilities of the prompts are computed too.

        Raises:
          HttpError: the scheduler refuses one.
        """
        options = self.options
        try:
            if scored:
                self.scores = [[] for _ in prompts]
                for number, tokens in enumerate(prompts):
                    submission = scheduler.score(tokens, self.score_receiver(number))
                    self.add(scheduler, submission, 1, range(0))
            for tokens, prompt_seeds in zip(prompts, seeds, strict=True):
                # A stop string ends a single choice, so each choice is then submitted alone.
                batches = [[seed] for seed in prompt_seeds] if options.stops else [prompt_seeds]
                for batch in filter(None, batches):
                    first = len(self.choices)
                    for _ in batch:
                        self.choices.append(Choice(self.detokenizer, options, stream=self.stream))
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
                    deliver = self.receiver(first)
                    submission = scheduler.submit(sequences, deliver, self.fail, self.unsent)
                    numbers = range(first, first + len(batch))
                    self.add(scheduler, submission, len(batch), numbers)
        except (InputError, RunError) as error:
            self.cancel()
            status = 400 if isinstance(error, InputError) else 503
            raise HttpError(str(error), status=status) from None

    def add(self, scheduler: Scheduler, submission: Submission, count: int, numbers: range) -> None:
        """Adds a submission of so many sequences or scores, and the numbers of its choices."""
        self.submissions.append((scheduler, submission, numbers))
        self.unfinished += count
        self.open += count
        self.count(count)

    def close(self, count: int) -> None:
        """Counts so many sequences or scores no longer as open."""
        self.open -= count
        self.count(-count)

    def receiver(self, first: int) -> Callable[[list[Chunk]], None]:
        """Returns the function that receives new tokens; the scheduler calls it in its thread."""
        every = self.stream or bool(self.options.stops)

        def receive(chunks: list[Chunk]) -> None:
            self.inbox.append(partial(self.add_tokens, first, chunks))
            if every or any(chunk.finish is not None for chunk in chunks):
                self.queue.put(self)

        return receive

    def score_receiver(self, number: int) -> Callable[[list[float] | Exception], None]:
        """Returns the function that receives the log-probabilities of a prompt."""

        def receive(result: list[float] | Exception) -> None:
            if isinstance(result, Exception):
                return self.fail(result)
            self.inbox.append(partial(self.add_score, number, result))
            return self.queue.put(self)

        return receive

    def fail(self, error: Exception) -> None:
        """Ends the request with an error; the scheduler calls this in its thread."""
        self.error = error
        self.queue.put(self)

    def read(self) -> None:
        """Adds what has arrived, and wakes the request if that changes its response."""
        while self.inbox:
            self.inbox.popleft()()
        if self.error is not None:
            self.close(self.open)
        if self.unfinished == 0 or self.error or (self.stream and self.changed):
            self.wake()

    def add_tokens(self, first: int, chunks: list[Chunk]) -> None:
        """Adds tokens to the choices from number `first` on."""
        for chunk in chunks:
            number = first + chunk.sequence.index
            choice = self.choices[number]
            if choice.finish is not None:
                continue
            choice.add(chunk)
            self.changed[number] = None
            if choice.finish is not None:
                self.unfinished -= 1
                self.close(min(1, self.open))
                if chunk.finish is None:  # a stop string ended it
                    self.cancel(number)

    def add_score(self, number: int, logprobs: list[float]) -> None:
        """Adds the log-probabilities of a prompt."""
        self.scores[number] = logprobs
        self.unfinished -= 1
        self.close(min(1, self.open))

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
        """Frees the slots of a choice, or of all that is unfinished."""
        if index is None:
            self.close(self.open)
        for scheduler, submission, numbers in self.submissions:
            if index is None or index in numbers:
                scheduler.cancel(submission)
