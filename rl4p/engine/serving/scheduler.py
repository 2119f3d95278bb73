"""The scheduler of the server: it continues the contexts of many clients together, in a thread."""

import logging
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
from rl4p.base.types import Params
from rl4p.engine.batch import Batch, placed
from rl4p.engine.chunk import Chunk, Ended
from rl4p.engine.score import check_scored, scored_tokens
from rl4p.engine.sequence import TokenSequence, check_request
from rl4p.engine.serving.pace import Pace, layout
from rl4p.engine.serving.submissions import (
    Command,
    Delivery,
    Lease,
    Submission,
    fulfil,
    send,
    taken,
)
from rl4p.engine.serving.unread import POLL_SECONDS, STALLED, Suspended
from rl4p.model.policy import Policy

log = logging.getLogger(__name__)

SCORES_PER_CALL = 4
IDLE_SECONDS = 10.0  # after which an idle server releases its cache
CLOSED = "The server is shutting down."
NOT_NUMBERS = "The log-probabilities of the model are not numbers: its weights may be wrong."


class Scheduler:
    """Continues contexts on the device, many at a time. Any thread may call its methods.

    It delivers from its own thread, at most once per device call and submission.

    Args:
      policy, params: the policy, and its trained parameters.
      version: the weight version of the parameters.
      slots: the most sequences that are decoded at a time.

    Attributes:
      version: the weight version of tokens that are drawn from now on.
      broken: why there are no weights to decode with, in a sentence; None if there are.
      leases: the pauses that have not ended; nothing is decoded while there is one.
    """

    def __init__(self, policy: Policy, params: Params, version: str, *, slots: int = 32) -> None:
        self.policy, self.version, self.slots = policy, version, slots
        self.params = placed(policy, policy.for_sampling(params))
        self.broken: str | None = None
        self.leases: set[Lease] = set()
        self.batch, self.pace = Batch(policy, layout(policy, slots)), Pace()
        self.waiting: deque[TokenSequence] = deque()
        self.suspended = Suspended()
        self.scores: deque[Submission] = deque()
        self.submissions: dict[Submission, None] = {}  # the open ones, in order
        self.drains = 0  # calls of pause("wait") that wait
        self.held: dict[Submission, None] = {}  # what is submitted meanwhile
        self.commands: deque[Command] = deque()
        self.undelivered: deque[Callable[[], list[Delivery]]] = deque()
        self.stale = False  # whether sequences of closed submissions run or wait
        self.closing = False
        self.numbers: Counter[str] = Counter()
        self.changed = threading.Condition(threading.RLock())
        self.thread = threading.Thread(target=self.run, name="scheduler", daemon=True)
        self.thread.start()

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
          RunError: the scheduler is broken or closed.
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
          RunError: the scheduler is broken or closed.
        """
        check_scored(tokens, self.policy.decoder.config.max_positions)
        return self.enter(Submission(deliver, deliver, scored=tokens))

    def enter(self, submission: Submission) -> Submission:
        """Queues a submission, or refuses it if it cannot be decoded."""
        with self.changed:
            if self.closing or self.broken:
                raise RunError(self.broken or CLOSED)
            self.submissions[submission] = None
            if self.drains:
                self.held[submission] = None
            else:
                self.queue(submission)
            self.changed.notify_all()
        return submission

    def queue(self, submission: Submission) -> None:
        if submission.scored:
            self.scores.append(submission)
        self.waiting.extend(submission.left.values())

    def cancel(self, submission: Submission) -> None:
        """Gives a submission up: nothing more is delivered, and its slots are freed."""
        with self.changed:
            submission.cancelled = True
            if submission.open:
                self.numbers["cancelled"] += submission.count
                self.shut(submission)
            self.changed.notify_all()

    def abort(self, submissions: Sequence[Submission] | None = None) -> None:
        """Ends sequences, of all submissions or some, after the present device call's tokens."""
        with self.changed:
            chosen = list(self.submissions) if submissions is None else list(submissions)
            self.order(lambda: self.abort_now(each for each in chosen if each.left))

    @property
    def paused(self) -> bool:
        """Whether all sequences wait for the end of a pause."""
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
            done = self.order(lambda: None)
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
            lambda: self.closing or self.leases or self.held.keys() >= self.submissions.keys(),
            timeout,
        )
        self.drains -= 1
        if not self.drains:  # another call may still wait for the same submissions
            for submission in [x for x in self.held if x.open]:
                self.queue(submission)
            self.held.clear()
        if not ready:
            self.changed.notify_all()
            raise RunError(f"The requests did not end within {timeout:g} seconds.")

    def resume(self, lease: Lease) -> None:
        """Ends a lease."""
        with self.changed:
            self.leases.discard(lease)
            self.changed.notify_all()

    def replace(self, load: Callable[[Params], Params], version: str, *, recompute: bool) -> None:
        """Replaces the weights between two device calls, also while paused; returns afterwards.

        Args:
          load: returns the new parameters. It receives the present ones (`Policy.for_sampling`),
            which it may change, and runs in the scheduler's thread.
          version: the version of the new weights.
          recompute: whether the keys and values of running sequences are computed again.

        Raises:
          InputError: raised by `load`, which has changed nothing. The former weights stay.
          RunError: `load` failed otherwise. Submissions are refused until a later call succeeds.
        """
        self.order(lambda: self.replace_now(load, version, recompute)).result()

    def counts(self) -> dict[str, float]:
        """Returns what the scheduler does and has done, in numbers."""
        with self.changed:
            running = len(self.batch.running())
            unfinished = sum(submission.count for submission in self.submissions)
            names = ("tokens", "finished", "aborted", "cancelled", "failed", "scored", "updates")
            return {name: float(self.numbers[name]) for name in names} | {
                "running": float(running),
                "waiting": float(max(0, unfinished - running)),
                "suspended": float(len(self.suspended)),
                "slots": float(self.slots),
                **self.batch.counts(),
            }

    def close(self) -> None:
        """Ends all sequences with `Finish.ABORT`, and the thread."""
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self.thread.join()

    def order(self, command: Callable[[], Any]) -> Future:
        """Has the thread run a command between two device calls."""
        done: Future[Any] = Future()
        with self.changed:
            if self.closing:
                raise RunError(CLOSED)
            self.commands.append((command, done))
            self.changed.notify_all()
        return done

    def shut(self, submission: Submission) -> None:
        """Forgets a submission. Its sequences are removed before the next device call."""
        self.stale |= bool(submission.left or submission.scored)
        submission.open = False
        submission.left.clear()
        del self.submissions[submission]

    # The rest runs in the scheduler's thread.
    def run(self) -> None:
        """Decodes until the scheduler is closed."""
        while True:
            commands, scores, new, decodes = self.next()
            if commands or self.closing:
                self.deliver()
                for command, done in commands:
                    fulfil(command, done)
                if self.closing:
                    break
            else:
                self.step(scores, new, decodes)
        self.abort_now()
        self.batch.clear()

    def step(self, scores: list[Submission], new: list[TokenSequence], decodes: bool) -> None:
        """Makes a device call, and delivers the results of the former while the device works."""
        try:
            decoder, mesh = self.policy.decoder, self.policy.sampling_mesh
            scored = [(x, scored_tokens(decoder, self.params, x.scored, mesh)) for x in scores]
            version, waiting = self.version, bool(self.waiting)
            if decodes:
                self.batch.admit(self.params, new, keep=waiting)
                steps = self.pace.steps(self.batch.size)
                self.batch.begin(self.params, steps=steps, waiting=waiting)
            self.deliver()
            self.undelivered += [partial(self.end_score, *pair) for pair in scored]
            if decodes:
                call = self.batch.end()
                self.pace.learn(call)
                if spoiled := call.spoiled():
                    self.batch.remove(spoiled)
                    self.batch.zero_free_slots()
                self.undelivered.append(partial(self.sort, call, spoiled, version))
        except Exception as error:
            log.exception("The device failed.")
            self.deliver()
            self.batch.clear()
            with self.changed:
                queued = {*self.waiting, *self.suspended, *self.scores}
                lost = [x for x in self.submissions if x not in self.held and not x.is_in(queued)]
            send(self.failures(lost, RunError(f"The device failed: {error}")))

    def deliver(self) -> None:
        """Delivers the results of the former device call."""
        while self.undelivered:
            send(self.undelivered.popleft()())

    def next(self) -> tuple[list[Command], list[Submission], list[TokenSequence], bool]:
        """Waits for commands, or for something to score, to place in free slots or to decode."""
        with self.changed:
            while True:
                if self.stale:
                    self.purge()
                if self.commands or self.closing:
                    commands = list(self.commands)
                    self.commands.clear()
                    return commands, [], [], False
                if self.suspended and not self.paused:
                    back, stalled = self.suspended.look(all_of_them=bool(self.drains))
                    self.waiting += back
                    if stalled:
                        self.undelivered.append(partial(self.failures, stalled, STALLED))
                if not self.paused and (self.scores or self.waiting or self.batch.running()):
                    break
                if self.undelivered:
                    return [], [], [], False
                self.changed.notify_all()  # `drain` waits for this
                seconds = POLL_SECONDS if self.suspended else IDLE_SECONDS
                if not self.changed.wait(seconds) and not (self.suspended or self.batch.running()):
                    self.batch.clear()
            if not self.drains:
                most = len(self.waiting) - (self.slots - len(self.batch.running()))
                self.batch.remove(self.suspended.take(self.batch.running(), most))
            scores = [self.scores.popleft() for _ in range(min(len(self.scores), SCORES_PER_CALL))]
            new = taken(self.waiting, self.slots - len(self.batch.running()))
            return [], scores, new, bool(new or self.batch.running())

    def purge(self) -> None:
        """Removes the sequences of closed submissions."""
        self.batch.remove([x for x in self.batch.running() if not x.owner.open])
        self.waiting = deque(x for x in self.waiting if x.owner.open)
        self.scores = deque(x for x in self.scores if x.open)
        self.stale = False

    def sort(self, call: Ended, spoiled: list[TokenSequence], version: str) -> list[Delivery]:
        """Returns the deliveries of the tokens of a device call, one for each submission."""
        parts: dict[Submission, list[Chunk]] = {}
        failing: list[Submission] = []
        chunks = call.chunks(version)
        with self.changed:
            for chunk in chunks:
                submission = chunk.sequence.owner
                if not submission.open:
                    continue
                if spoiled and chunk.sequence in spoiled:
                    failing.append(submission)
                    continue
                if chunk.finish is not None:
                    del submission.left[chunk.sequence.index]
                    self.numbers["finished"] += 1
                self.numbers["tokens"] += len(chunk.tokens)
                parts.setdefault(submission, []).append(chunk)
                if not submission.left:
                    self.shut(submission)
        deliveries = [(submission, submission.deliver, own) for submission, own in parts.items()]
        return deliveries + self.failures(failing, RunError(NOT_NUMBERS))

    def end_score(self, submission: Submission, logprobs_T: jax.Array) -> list[Delivery]:
        """Waits for log-probabilities."""
        logprobs = np.asarray(logprobs_T)[: len(submission.scored) - 1].tolist()
        if any(map(math.isnan, logprobs)):
            return self.failures([submission], RunError(NOT_NUMBERS))
        with self.changed:
            if submission.open:
                self.shut(submission)
            self.numbers["scored"] += 1
        return [(submission, submission.deliver, [math.nan, *logprobs])]

    def failures(self, submissions: Iterable[Submission], error: Exception) -> list[Delivery]:
        """Ends submissions with an error, and returns its deliveries."""
        return self.ended(submissions, "failed", lambda submission: submission.failed(error))

    def abort_now(self, submissions: Iterable[Submission] | None = None) -> None:
        """Ends submissions, or all, with `Finish.ABORT`, whatever the device does."""
        chosen = self.submissions if submissions is None else submissions
        send(self.ended(chosen, "aborted", Submission.aborted))

    def ended(
        self, submissions: Iterable[Submission], how: str, last: Callable[[Submission], Delivery]
    ) -> list[Delivery]:
        """Ends and counts the submissions that are open, and returns their last deliveries."""
        deliveries: list[Delivery] = []
        with self.changed:
            for submission in list(submissions):
                if submission.open:
                    self.numbers[how] += submission.count
                    deliveries.append(last(submission))
                    self.shut(submission)
        return deliveries

    def replace_now(self, load: Callable[[Params], Params], version: str, recompute: bool) -> None:
        try:
            self.params = placed(self.policy, load(self.params))
        except InputError:
            raise
        except Exception as error:
            self.broken = f"The weights could not be replaced: {error}"
            send(self.failures(self.submissions, RunError(self.broken)))
            self.batch.clear()
            raise RunError(self.broken) from error
        self.version, self.broken = version, None
        self.numbers["updates"] += 1
        self.batch.contexts.clear()
        if recompute:
            with self.changed:
                self.waiting.extendleft(reversed(self.batch.running()))
                self.batch.clear()
