"""The driver of the engine: it takes what waits, and admits, begins, ends and delivers it."""

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal

import jax
import numpy as np

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Finish, Params
from rl4p.engine.batch import Batch, Kept, placed
from rl4p.engine.cache import check_scored, cleared, scored_tokens
from rl4p.engine.decode import MOST_STEPS, SharedDistribution
from rl4p.engine.layout import Layout
from rl4p.engine.sequence import Chunk, Ended, TokenSequence, check_request
from rl4p.engine.speculation import Speculation
from rl4p.model.policy import Policy, padded_width

SCORES_PER_CALL = 4
CLOSED = "The server is shutting down."
ENDED = "The server ended the request."
NOT_NUMBERS = "The log-probabilities of the model are not numbers: its weights may be wrong."
SECONDS_PER_CALL = 0.03  # shorter calls cost more on the host, longer ones delay new requests
FIRST_STEPS = 8  # of a call while the seconds of a step are not known
SLOWER = 1.02  # the most by which the estimated seconds of a step grow from call to call


class Lease:
    """The right of a pause or of an update to keep the driver from decoding."""


class Submission:
    """Sequences or a score of one caller (`Driver.submit`, `Driver.score`).

    Attributes:
      deliver: receives the new tokens of the sequences, or the scores, and must return quickly.
      fail: receives the error that ended all of the sequences, after which nothing is delivered.
        None: they end with `Finish.ABORT` instead.
      left: the unfinished sequences, by their number.
      scored: the tokens to score, if it has no sequences.
      unsent: returns the bytes of a stream that its client has no room for, because it does not
        read. Above 0, the sequences give up their slots to others that wait. Any thread calls it.
      open: whether it has not ended.
      cancelled: whether nothing more is delivered.
    """

    def __init__(
        self,
        deliver: Callable[[Any], None],
        fail: Callable[[Exception], None] | None,
        unsent: Callable[[], int] = lambda: 0,
        *,
        sequences: Sequence[TokenSequence] = (),
        scored: Sequence[int] = (),
    ) -> None:
        self.deliver, self.fail, self.unsent, self.scored = deliver, fail, unsent, scored
        self.left = dict(enumerate(sequences))
        for index, sequence in self.left.items():
            sequence.owner, sequence.index = self, index
        self.open, self.cancelled = True, False

    @property
    def count(self) -> int:
        """The number of unfinished sequences or scores."""
        return len(self.left) or int(self.open)


Delivery = tuple[Submission, Callable[[Any], None], Any]
Command = tuple[Callable[[], Any], Future]  # and what its caller waits for


class CallSteps:
    """The number of decode steps of a device call: fixed, or for about `SECONDS_PER_CALL`."""

    def __init__(self, fixed: int | None = None) -> None:
        self.fixed = fixed
        self.seconds_per_step: dict[int, float] = {}  # by the number of slots

    def steps(self, slots: int) -> int:
        if self.fixed is not None:
            return self.fixed
        seconds = self.seconds_per_step.get(slots)
        if seconds is None:
            return FIRST_STEPS
        return min(math.ceil(SECONDS_PER_CALL / seconds), MOST_STEPS)

    def learn(self, call: Ended) -> None:
        """Learns from a call, unless it also placed sequences.

        The estimate follows the fastest calls, since others shared the processor with clients.
        Shorter calls would only make that worse.
        """
        if call.outcome.steps and not math.isnan(call.seconds):
            seconds = call.seconds / call.outcome.steps
            slowest = SLOWER * self.seconds_per_step.get(call.size, seconds)
            self.seconds_per_step[call.size] = min(seconds, slowest)


class Driver:
    """Decodes many sequences at a time on the device, and owns no thread.

    A rollout calls `step` until its sequences have ended. A server calls `run_call` in a thread of
    its own (`Scheduler`), and other threads call the methods above `take`. A `Scheduler` also runs
    the commands of `pause`, `abort` and `replace`, between two device calls. Several processes make
    the same device calls if all submit the same sequences between the same steps.

    Args:
      params: the parameters of the policy, as the device calls take them.
      version: the weight version of the parameters.
      layout: the sizes of the batch.
      slots: the most sequences that are decoded at a time; None for all slots of the layout.
      call_steps: the number of decode steps of a device call.
      distribution: the distribution of all sequences; None takes their own.
      kept, speculation: as in `Batch`.
      reuses: whether contexts that were prefilled, and caches in `kept`, may be needed later: other
        samples of a prompt then come in other calls.
      checks: whether sequences end with an error if their log-probabilities are not numbers.

    Attributes:
      version: the weight version of tokens that are drawn from now on.
      broken: why there are no weights to decode with, in a sentence; None if there are.
      leases: the pauses that have not ended; nothing is decoded while there is one.
    """

    def __init__(
        self,
        policy: Policy,
        params: Params,
        version: str,
        layout: Layout,
        *,
        call_steps: CallSteps,
        slots: int | None = None,
        distribution: SharedDistribution | None = None,
        kept: Kept | None = None,
        speculation: Speculation | None = None,
        reuses: bool = False,
        checks: bool = False,
    ) -> None:
        self.policy, self.params, self.version = policy, params, version
        self.slots = layout.sizes[-1] if slots is None else slots
        self.call_steps, self.distribution = call_steps, distribution
        self.reuses, self.checks = reuses, checks
        self.batch = Batch(policy, layout, kept, speculation)
        self.broken: str | None = None
        self.leases: set[Lease] = set()
        self.waiting: deque[TokenSequence] = deque()
        self.scores: deque[Submission] = deque()
        self.submissions: dict[Submission, None] = {}  # the open ones, in order
        self.drains = 0  # calls of pause("wait") that wait
        self.held_back: dict[Submission, None] = {}  # what is submitted meanwhile
        self.commands: deque[Command] = deque()
        self.undelivered: deque[Callable[[], list[Delivery]]] = deque()
        self.stale = False  # whether sequences of closed submissions run or wait
        self.closing = False
        self.counters: Counter[str] = Counter()
        self.changed = threading.Condition(threading.RLock())

    def submit(
        self,
        sequences: Sequence[TokenSequence],
        deliver: Callable[[list[Chunk]], None],
        fail: Callable[[Exception], None] | None = None,
        unsent: Callable[[], int] = lambda: 0,
    ) -> Submission:
        """Starts to decode sequences, which are numbered in their order, for a new submission.

        Raises:
          InputError: the model has no positions for them, or there is nothing to draw.
          RunError: the driver is broken or closed.
        """
        longest = self.policy.decoder.config.max_positions
        for sequence in sequences:
            check_request(sequence.context, 1, sequence.max_tokens, longest)
        return self.enter(Submission(deliver, fail, unsent, sequences=sequences))

    def score(self, tokens: Sequence[int], deliver: Callable[[Any], None]) -> Submission:
        """Computes log p(token t | tokens before t) at temperature 1; the first is nan.

        `deliver` receives them in a list, or an error.

        Raises:
          InputError: there are no tokens, or more than the model has positions.
          RunError: the driver is broken or closed.
        """
        check_scored(tokens, self.policy.decoder.config.max_positions)
        return self.enter(Submission(deliver, deliver, scored=tokens))

    def enter(self, submission: Submission) -> Submission:
        """Queues a submission.

        Raises:
          RunError: the driver is broken or closed.
        """
        with self.changed:
            if self.closing or self.broken:
                raise RunError(self.broken or CLOSED)
            self.submissions[submission] = None
            if self.drains:
                self.held_back[submission] = None
            else:
                self.scores += [submission] if submission.scored else []
                self.waiting += submission.left.values()
            self.changed.notify_all()
        return submission

    def cancel(self, submission: Submission) -> None:
        """Gives a submission up: nothing more is delivered, and its slots are freed."""
        with self.changed:
            submission.cancelled = True
            if submission.open:
                self.counters["cancelled"] += submission.count
                self.end_submission(submission)
            self.changed.notify_all()

    def abort(self, submissions: Sequence[Submission] | None = None) -> None:
        """Ends sequences, of all submissions or some, after the present device call's tokens."""
        with self.changed:
            chosen = list(self.submissions) if submissions is None else list(submissions)
            self.run_between_calls(lambda: self.abort_now(each for each in chosen if each.left))

    @property
    def paused(self) -> bool:
        return bool(self.leases)

    def pause(self, mode: Literal["keep", "wait", "abort"], timeout: float) -> Lease:
        """Stops decoding, and returns a lease once the device is idle.

        Decoding goes on when `resume` has ended this lease and all others.

        Args:
          mode: whether earlier submissions stay and go on afterwards, are waited for (unless
            another pause stops them meanwhile), or are aborted.
          timeout: the most seconds to wait.

        Raises:
          RunError: it takes longer; there is then no lease.
        """
        with self.changed:
            lease = Lease()
            if mode == "wait":
                self.drain(timeout)
            elif mode == "abort":
                self.abort()
            done = self.run_between_calls(lambda: None)
            self.leases.add(lease)
        try:
            done.result(timeout)
        except TimeoutError:
            self.resume(lease)
            raise RunError(f"The device call did not end within {timeout:g} seconds.") from None
        return lease

    def drain(self, timeout: float) -> None:
        """Waits until all earlier submissions have ended, and holds new ones back meanwhile."""
        self.drains += 1
        ready = self.changed.wait_for(
            lambda: self.closing or self.leases or self.held_back.keys() >= self.submissions.keys(),
            timeout,
        )
        self.drains -= 1
        if not self.drains:  # another call may still wait for the same submissions
            held = [x for x in self.held_back if x.open]
            self.scores += [x for x in held if x.scored]
            self.waiting += [each for x in held for each in x.left.values()]
            self.held_back.clear()
        if not ready:
            self.changed.notify_all()
            raise RunError(f"The requests did not end within {timeout:g} seconds.")

    def resume(self, lease: Lease) -> None:
        with self.changed:
            self.leases.discard(lease)
            self.changed.notify_all()

    def replace(self, load: Callable[[Params], Params], version: str, *, recompute: bool) -> None:
        """Replaces the weights between two device calls, also while paused; returns afterwards.

        Args:
          load: returns the new parameters. It receives the present ones (`Policy.for_sampling`),
            which it may change, and runs in the thread that decodes.
          version: the version of the new weights.
          recompute: whether the keys and values of running sequences are computed again.

        Raises:
          InputError: raised by `load`, which has changed nothing. The former weights stay.
          RunError: `load` failed otherwise. Submissions are refused until a later call succeeds.
        """
        self.run_between_calls(lambda: self.replace_now(load, version, recompute)).result()

    def counts(self) -> dict[str, float]:
        """Returns what the driver does and has done, in numbers."""
        with self.changed:
            running = len(self.batch.slots.running())
            unfinished = sum(submission.count for submission in self.submissions)
            names = ("tokens", "finished", "aborted", "cancelled", "failed", "scored", "updates")
            return {name: float(self.counters[name]) for name in names} | {
                "running": float(running),
                "waiting": float(max(0, unfinished - running)),
                "slots": float(self.slots),
                **self.batch.counts(),
            }

    def run_between_calls(self, command: Callable[[], Any]) -> Future:
        """Has the thread that decodes run a command between two device calls."""
        done: Future[Any] = Future()
        with self.changed:
            if self.closing:
                raise RunError(CLOSED)
            self.commands.append((command, done))
            self.changed.notify_all()
        return done

    def end_submission(self, submission: Submission) -> None:
        """Forgets a submission. Its sequences are removed before the next device call."""
        self.stale |= bool(submission.left or submission.scored)
        submission.open = False
        submission.left.clear()
        del self.submissions[submission]

    # The rest is called by whoever makes the device calls.
    def take(self) -> tuple[list[Submission], list[TokenSequence]]:
        """Removes from the queues what the next call scores, and what it places in free slots."""
        with self.changed:
            scores = [self.scores.popleft() for _ in range(min(len(self.scores), SCORES_PER_CALL))]
            free = self.slots - len(self.batch.slots.running())
            new: list[TokenSequence] = []
            contexts: set[tuple[int, ...]] = set()
            room = self.batch.layout.tokens_per_call
            while self.waiting and len(new) < free:
                context = tuple(self.waiting[0].tokens)
                if room is not None and context not in contexts:
                    contexts.add(context)
                    room -= padded_width(len(context))
                    if new and room < 0:
                        break
                new.append(self.waiting.popleft())
            return scores, new

    def run_call(self, scores: Sequence[Submission], new: Sequence[TokenSequence]) -> None:
        """Makes a device call, and delivers the results of the former while the device works."""
        decoder, mesh = self.policy.decoder, self.policy.sampling_mesh
        scored = [(x, scored_tokens(decoder, self.params, x.scored, mesh)) for x in scores]
        version, waiting = self.version, bool(self.waiting)
        decodes = bool(new or self.batch.slots.running())
        if decodes:
            self.batch.admit(self.params, new, keep=waiting or self.reuses)
            if self.reuses:
                for sequence in new:
                    self.batch.forget(sequence.context)
            self.batch.begin(
                self.params,
                steps=self.call_steps.steps(self.batch.size),
                waiting=waiting,
                distribution=self.distribution,
            )
        self.deliver()
        self.undelivered += [partial(self.end_score, *pair) for pair in scored]
        if decodes:
            call = self.batch.end()
            self.call_steps.learn(call)
            wrong = call.not_numbers() if self.checks else []
            if wrong:
                self.batch.remove(wrong)
                # A NaN in a free slot would spoil even the attention that masks it.
                self.batch.cache = cleared(self.batch.cache, ~self.batch.slots.state.active_n)
            self.undelivered.append(partial(self.collect_deliveries, call, wrong, version))

    def step(self) -> None:
        """Makes a device call with what waits and runs, and delivers its results."""
        if self.stale:
            self.purge()
        self.run_call(*self.take())
        self.deliver()

    def release(self) -> None:
        """Drops the parameters and the caches, when nothing more is decoded.

        The sequences refer to the driver, and it to them: a collection of garbage, some time later,
        would be the first to free what both hold.
        """
        self.params = {}
        self.batch.clear()

    def stop(self, sequence: TokenSequence) -> None:
        """Ends a sequence early; a receiver of its tokens calls this during `step`."""
        self.batch.remove([sequence])
        submission = sequence.owner
        if submission.open:
            del submission.left[sequence.index]
            if not submission.left:
                self.end_submission(submission)

    def deliver(self) -> None:
        """Calls the receivers of what earlier device calls gave, without the lock."""
        while self.undelivered:
            self.send(self.undelivered.popleft()())

    def send(self, deliveries: Sequence[Delivery]) -> None:
        for submission, receive, content in deliveries:
            if not submission.cancelled:
                receive(content)

    def purge(self) -> None:
        """Removes the sequences of closed submissions from the batch and the queues."""
        self.batch.remove([x for x in self.batch.slots.running() if not x.owner.open])
        self.waiting = deque(x for x in self.waiting if x.owner.open)
        self.scores = deque(x for x in self.scores if x.open)
        self.stale = False

    def collect_deliveries(
        self, call: Ended, wrong: list[TokenSequence], version: str
    ) -> list[Delivery]:
        """Returns the deliveries of the tokens of a device call, one for each submission."""
        parts: dict[Submission, list[Chunk]] = {}
        failing: list[Submission] = []
        chunks = call.chunks(version)
        with self.changed:
            for chunk in chunks:
                submission = chunk.sequence.owner
                if not submission.open:
                    continue
                if wrong and chunk.sequence in wrong:
                    failing.append(submission)
                    continue
                if chunk.sequence.kept is not None:
                    padding = self.batch.layout.padding(chunk.sequence.context)
                    tokens = tuple(chunk.sequence.tokens)
                    self.batch.kept[tokens] = chunk.sequence.kept, padding
                if chunk.finish is not None:
                    del submission.left[chunk.sequence.index]
                    self.counters["finished"] += 1
                self.counters["tokens"] += len(chunk.tokens)
                parts.setdefault(submission, []).append(chunk)
                if not submission.left:
                    self.end_submission(submission)
        deliveries = [(submission, submission.deliver, own) for submission, own in parts.items()]
        return deliveries + self.end_all(failing, RunError(NOT_NUMBERS))

    def end_score(self, submission: Submission, logprobs_T: jax.Array) -> list[Delivery]:
        logprobs = np.asarray(logprobs_T)[: len(submission.scored) - 1].tolist()
        if any(map(math.isnan, logprobs)):
            return self.end_all([submission], RunError(NOT_NUMBERS))
        with self.changed:
            if submission.open:
                self.end_submission(submission)
            self.counters["scored"] += 1
        return [(submission, submission.deliver, [math.nan, *logprobs])]

    def end_all(
        self, submissions: Iterable[Submission], error: Exception | None = None
    ) -> list[Delivery]:
        """Ends the open ones, with an error or `Finish.ABORT`; returns the last deliveries."""
        deliveries: list[Delivery] = []
        with self.changed:
            for submission in list(submissions):
                if not submission.open:
                    continue
                self.counters["failed" if error else "aborted"] += submission.count
                if error and submission.fail is not None:
                    deliveries.append((submission, submission.fail, error))
                else:
                    ends: Any = [
                        Chunk(sequence, [], [], [], Finish.ABORT)
                        for sequence in submission.left.values()
                    ]
                    last = RunError(ENDED) if submission.scored else ends
                    deliveries.append((submission, submission.deliver, last))
                self.end_submission(submission)
        return deliveries

    def abort_now(self, submissions: Iterable[Submission] | None = None) -> None:
        """Ends submissions, or all, with `Finish.ABORT`; the thread that decodes calls it."""
        self.send(self.end_all(self.submissions if submissions is None else submissions))

    def replace_now(self, load: Callable[[Params], Params], version: str, recompute: bool) -> None:
        try:
            self.params = placed(self.policy, load(self.params))
        except InputError:
            raise
        except Exception as error:
            self.broken = f"The weights could not be replaced: {error}"
            self.send(self.end_all(self.submissions, RunError(self.broken)))
            self.batch.clear()
            raise RunError(self.broken) from error
        self.version, self.broken = version, None
        self.counters["updates"] += 1
        self.batch.contexts.clear()
        if recompute:
            with self.changed:
                self.waiting.extendleft(reversed(self.batch.slots.running()))
                self.batch.clear()
