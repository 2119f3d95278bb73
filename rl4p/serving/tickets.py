"""The tickets of work that the scheduler has taken, and what it delivers to their owners."""

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from rl4p.errors import RunError
from rl4p.serving.slots import Running
from rl4p.serving.work import Part
from rl4p.types import Finish

log = logging.getLogger(__name__)

ENDED = "The server ended the request."


class Ticket:
    """What `Scheduler.submit` and `Scheduler.score` return, to cancel or abort the work by.

    Attributes:
      left: the unfinished completions, by the number of their seed.
      scored: the tokens to score, if it is not work.
      open: whether it has not ended.
      cancelled: whether nothing more is delivered.
    """

    def __init__(
        self, deliver: Callable[[Any], None], fail: Callable[[Exception], None] | None
    ) -> None:
        self.deliver, self.fail = deliver, fail
        self.left: dict[int, Running] = {}
        self.scored: Sequence[int] = ()
        self.open, self.cancelled = True, False

    @property
    def count(self) -> int:
        """The number of unfinished completions or scores."""
        return len(self.left) or int(self.open)

    def aborted(self) -> "Delivery":
        """Returns the delivery that ends the unfinished completions."""
        if self.scored:
            return self, self.deliver, RunError(ENDED)
        ends = [Part(index, [], [], "", [], Finish.ABORT) for index in self.left]
        return self, self.deliver, ends

    def failed(self, error: Exception) -> "Delivery":
        """Returns the delivery of an error."""
        return self.aborted() if self.fail is None else (self, self.fail, error)


Delivery = tuple[Ticket, Callable[[Any], None], Any]


def send(deliveries: Sequence[Delivery]) -> None:
    """Makes deliveries, except those of cancelled tickets."""
    for ticket, deliver, content in deliveries:
        if not ticket.cancelled:
            try:
                deliver(content)
            except Exception:
                log.exception("The delivery of tokens failed.")


Command = tuple[Callable[[], Any], Future]  # and what its caller waits for


def fulfil(command: Callable[[], Any], done: Future) -> None:
    """Runs a command, and hands its result or error to whoever waits for it."""
    try:
        done.set_result(command())
    except Exception as error:  # noqa: BLE001 - the caller raises it
        done.set_exception(error)
