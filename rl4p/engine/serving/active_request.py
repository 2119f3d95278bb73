"""Active requests and their choices, between the scheduler's thread and the event loop."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Finish, Sampling
from rl4p.engine.detokenizer import Detokenizer, IncrementalDetokenizer, StopStrings
from rl4p.engine.driver import Submission
from rl4p.engine.sequence import Chunk, TokenSequence, key_data
from rl4p.engine.serving.body import ClientDisconnectError, HttpError
from rl4p.engine.serving.scheduler import Scheduler

FINISH = {Finish.STOP: "stop", Finish.LENGTH: "length", Finish.ABORT: "abort"}


@dataclass(frozen=True, kw_only=True)
class CompletionOptions:
    """The options of each choice of a request.

    Attributes:
      sampling, max_tokens, end_ids, min_tokens: as in `TokenSequence`.
      alternatives: how many tokens are returned beside each drawn token; None for no
        log-probabilities.
      stops: the strings that end a choice.
      keep_stop: whether the text includes the stop string or end token.
      skip_special: whether the text leaves special tokens out.
    """

    sampling: Sampling
    max_tokens: int
    end_ids: tuple[int, ...]
    min_tokens: int = 0
    alternatives: int | None = None
    stops: tuple[str, ...] = ()
    keep_stop: bool = False
    skip_special: bool = True


class VersionSpan(NamedTuple):
    """The tokens from `start` to `end`, which the weights of one version drew."""

    version: str
    start: int
    end: int


class Delta(NamedTuple):
    """The new text and tokens of a choice since the last delta."""

    text: str
    start: int  # its first new token


class Choice:
    """A choice of a request, which gains tokens until it ends.

    The text is decoded at the end, unless a stream or stop strings need it as tokens arrive.

    Attributes:
      tokens, logprobs, alternatives: as in `Chunk`, from the first token.
      spans: the weight version of each token.
      finish: `stop`, `length` or `abort`; None while it is unfinished.
      matched: the end token or stop string that ended it; None for any other reason.
    """

    def __init__(
        self, detokenizer: Detokenizer, options: CompletionOptions, *, stream: bool
    ) -> None:
        self.detokenizer, self.options = detokenizer, options
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.alternatives: list[list[tuple[int, float]]] = []
        self.spans: list[VersionSpan] = []
        self.finish: str | None = None
        self.matched: int | str | None = None
        self.stops = StopStrings(options.stops, keep=options.keep_stop) if options.stops else None
        self.incremental: IncrementalDetokenizer | None = None
        if stream or options.stops:
            self.incremental = IncrementalDetokenizer(
                detokenizer, skip_special=options.skip_special
            )
        self.pieces: list[str] = []  # the text so far
        self.sent = 0, 0  # the numbers of pieces and tokens in former deltas
        self.offset = 0  # of the next token in the text of `/v1/completions`

    def add(self, chunk: Chunk) -> None:
        """Adds new tokens. The token that completes a stop string is the last of the choice."""
        if self.finish is not None:
            return
        tokens, finish = chunk.tokens, chunk.finish
        if self.incremental is not None:
            tokens, finish = self.read(tokens, finish)
        count = len(tokens)
        before = len(self.tokens)
        self.tokens += tokens
        self.logprobs += chunk.logprobs[:count]
        self.alternatives += chunk.alternatives[:count]
        if self.spans and self.spans[-1].version == chunk.version:
            self.spans[-1] = self.spans[-1]._replace(end=before + count)
        elif count:
            self.spans.append(VersionSpan(chunk.version, before, before + count))
        if finish is not None:
            self.finish = FINISH[finish]
            if finish is Finish.STOP and self.matched is None:
                self.matched = tokens[-1]

    def read(self, tokens: list[int], finish: Finish | None) -> tuple[list[int], Finish | None]:
        """Decodes new tokens; returns those that belong to the choice, and why it ends."""
        assert self.incremental is not None
        shown = self.shown(tokens, finish)
        if self.stops is None:
            self.pieces.append(self.incremental.feed(shown))
            if finish is not None:
                self.pieces.append(self.incremental.flush())
            return tokens, finish
        before = self.incremental.copy()
        text = self.incremental.feed(shown)
        if self.stops.occurs(text):
            for count, token in enumerate(shown, 1):  # which token completes the stop string?
                certain, self.matched = self.stops.feed(before.feed([token]))
                self.pieces.append(certain)
                if self.matched is not None:
                    return tokens[:count], Finish.STOP
        self.pieces.append(self.stops.feed(text)[0])
        if finish is not None:
            self.pieces.append(self.stops.flush() + self.incremental.flush())
        return tokens, finish

    def shown(self, tokens: Sequence[int], finish: Finish | None) -> Sequence[int]:
        ends = finish is Finish.STOP and not self.options.keep_stop
        return tokens[:-1] if ends else tokens

    def text(self) -> str:
        """Returns the text so far. It needs a stream, stop strings, or a choice that has ended."""
        if self.incremental is not None:
            return "".join(self.pieces)
        finish = Finish.STOP if self.finish == "stop" else None
        shown = self.shown(self.tokens, finish)
        return self.detokenizer.decode(shown, skip_special=self.options.skip_special)

    def delta(self) -> Delta:
        """Returns the text and tokens that are new since the last call."""
        pieces, tokens = self.sent
        self.sent = len(self.pieces), len(self.tokens)
        return Delta("".join(self.pieces[pieces:]), tokens)

    def versions(self, start: int = 0) -> list[dict[str, Any]]:
        return [
            {"version": version, "start": max(begin, start), "end": end}
            for version, begin, end in self.spans
            if end > start
        ]


def empty_choices(count: int, detokenizer: Detokenizer, options: CompletionOptions) -> list[Choice]:
    choices = [Choice(detokenizer, options, stream=False) for _ in range(count)]
    for choice in choices:
        choice.finish = "length"
    return choices


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
        self.submissions: list[Submission] = []
        self.cancels: list[tuple[Callable[[], None], range]] = []  # with the numbers of choices
        self.inbox: deque[tuple[int, Any]] = deque()  # chunks or scores, with a number
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
        try:
            if scored:
                self.scores = [[] for _ in prompts]
                for number, tokens in enumerate(prompts):
                    submission = scheduler.score(tokens, partial(self.receive_score, number))
                    self.submissions.append(submission)
                    self.add(partial(scheduler.cancel, submission), 1, range(0))
            for tokens, own in zip(prompts, seeds, strict=True):
                # A stop string ends a single choice, so each choice is then submitted alone.
                for batch in filter(None, [[x] for x in own] if self.options.stops else [own]):
                    sequences, numbers = self.sequences(tokens, batch)
                    deliver = partial(self.receive, numbers.start)
                    submission = scheduler.submit(sequences, deliver, self.fail, self.unsent)
                    self.submissions.append(submission)
                    self.add(partial(scheduler.cancel, submission), len(batch), numbers)
        except (InputError, RunError) as error:
            self.cancel()
            status = 400 if isinstance(error, InputError) else 503
            raise HttpError(str(error), status=status) from None

    def sequences(
        self, tokens: Sequence[int], seeds: Sequence[int]
    ) -> tuple[list[TokenSequence], range]:
        """Returns new sequences, one for each seed, and the numbers of their new choices."""
        options, first = self.options, len(self.choices)
        self.choices += [Choice(self.detokenizer, options, stream=self.stream) for _ in seeds]
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
            for seed in seeds
        ]
        return sequences, range(first, first + len(seeds))

    def add(self, cancel: Callable[[], Any], count: int, numbers: range) -> None:
        """Adds work to the request: sequences to sample, or scores to compute.

        Args:
          cancel: ends this work.
          count: how many sequences or scores it has.
          numbers: those of the choices of the response that it fills.
        """
        self.cancels.append((cancel, numbers))
        self.unfinished += count
        self.open += count
        self.count(count)

    def close(self, count: int) -> None:
        self.open -= count
        self.count(-count)

    def receive(self, first: int, chunks: list[Chunk]) -> None:
        """Receives tokens of the choices from number `first` on, in the scheduler's thread."""
        self.inbox.append((first, chunks))
        every = self.stream or self.options.stops
        if every or any(chunk.finish is not None for chunk in chunks):
            self.queue.put(self)

    def receive_score(self, number: int, result: list[float] | Exception) -> None:
        """Receives the log-probabilities of a prompt, or an error, in the scheduler's thread."""
        if isinstance(result, Exception):
            self.error = result
        else:
            self.inbox.append((number, result))
        self.queue.put(self)

    def fail(self, error: Exception) -> None:
        """Ends the request with an error; the scheduler calls this in its thread."""
        self.error = error
        self.queue.put(self)

    def read(self) -> None:
        """Adds what has arrived, and wakes the request if that changes its response."""
        while self.inbox:
            first, arrived = self.inbox.popleft()
            if isinstance(arrived[0], Chunk):
                self.add_tokens(first, arrived)
            else:
                self.scores[first] = arrived
                self.unfinished -= 1
                self.close(min(1, self.open))
        if self.error is not None:
            self.close(self.open)
        if self.unfinished == 0 or self.error or (self.stream and self.changed):
            self.wake()

    def add_tokens(self, first: int, chunks: list[Chunk]) -> None:
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
        if isinstance(self.error, HttpError):
            raise self.error
        if self.error is not None:
            raise HttpError(str(self.error), status=503)

    async def finished(self) -> list[Choice]:
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
        for cancel, numbers in self.cancels:
            if index is None or index in numbers:
                cancel()
