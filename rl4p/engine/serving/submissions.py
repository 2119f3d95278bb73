"""What clients have at the scheduler, and what it delivers to them."""

import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import Any

from rl4p.base.errors import RunError
from rl4p.base.types import Finish
from rl4p.engine.chunk import Chunk
from rl4p.engine.sequence import TokenSequence
from rl4p.model.policy import padded_width

log = logging.getLogger(__name__)

ENDED = "The server ended the request."
PROMPT_TOKENS_PER_CALL = 2048  # prefilled between two device calls; running sequences wait


class Lease:
    """The right of a pause or of an update to keep the scheduler from decoding."""


class Submission:
    """What `Scheduler.submit` and `Scheduler.score` return, to cancel or abort it by.

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

    def is_in(self, queued: Collection["TokenSequence | Submission"]) -> bool:
        """Returns whether all its unfinished sequences, or its score, are in a queue."""
        return all(each in queued for each in self.left.values() or (self,))

    def aborted(self) -> "Delivery":
        """Returns the delivery that ends the unfinished sequences."""
        if self.scored:
            return self, self.deliver, RunError(ENDED)
        ends = [Chunk(sequence, [], [], [], Finish.ABORT) for sequence in self.left.values()]
        return self, self.deliver, ends

    def failed(self, error: Exception) -> "Delivery":
        """Returns the delivery of an error."""
        return self.aborted() if self.fail is None else (self, self.fail, error)


Delivery = tuple[Submission, Callable[[Any], None], Any]


def send(deliveries: Sequence[Delivery]) -> None:
    """Makes deliveries, except to cancelled submissions."""
    for submission, deliver, content in deliveries:
        if not submission.cancelled:
            try:
                deliver(content)
            except Exception:
                log.exception("The delivery of tokens failed.")


def taken(waiting: deque[TokenSequence], free: int) -> list[TokenSequence]:
    """Removes sequences for free slots from a queue, and returns them.

    Their different contexts have at most `PROMPT_TOKENS_PER_CALL` tokens, or there is only one.
    """
    new: list[TokenSequence] = []
    contexts: set[tuple[int, ...]] = set()
    room = PROMPT_TOKENS_PER_CALL
    while waiting and len(new) < free:
        if (context := tuple(waiting[0].tokens)) not in contexts:
            contexts.add(context)
            room -= padded_width(len(context))
        if new and room < 0:
            break
        new.append(waiting.popleft())
    return new


Command = tuple[Callable[[], Any], Future]  # and what its caller waits for


def fulfil(command: Callable[[], Any], done: Future) -> None:
    """Runs a command, and hands its result or error to whoever waits for it."""
    try:
        done.set_result(command())
    except Exception as error:  # noqa: BLE001 - the caller raises it
        done.set_exception(error)
