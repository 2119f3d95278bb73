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

from rl4p.errors import InputError, RunError
from rl4p.model.policy import Policy
from rl4p.serving.batch import Batch, Ended, placed
from rl4p.serving.programs import scored_tokens
from rl4p.serving.slots import Running, taken
from rl4p.serving.tickets import Command, Delivery, Ticket, fulfil, send
from rl4p.serving.work import Part, Work, check_scored, check_work
from rl4p.types import Finish, Params

log = logging.getLogger(__name__)

SCORES_PER_CALL = 4
IDLE_SECONDS = 10.0  # after which an idle server releases its cache
CLOSED = "The server is shutting down."
NOT_NUMBERS = "The log-probabilities of the model are not numbers: its weights may be wrong."


class Scheduler:
    """Continues contexts on the device, many at a time. Any thread may call its methods.

    It delivers from its own thread, at most once per device call and ticket. What it calls must
    return quickly.

    Args:
      policy, params: the policy, and its trained parameters.
      version: the weight version of the parameters.
      slots: the most completions that run at a time.

    Attributes:
      version: the weight version of tokens that are drawn from now on.
      broken: why there are no weights to decode with, in a sentence; None if there are.
      paused: whether all work waits for `resume`.
    """

    def __init__(self, policy: Policy, params: Params, version: str, *, slots: int = 32) -> None:
        self.policy, self.version, self.slots = policy, version, slots
        self.params = placed(policy, policy.for_sampling(params))
        self.broken: str | None = None
        self.paused = False
        self.batch = Batch(policy, slots)
        self.waiting: deque[Running] = deque()
        self.scores: deque[Ticket] = deque()
        self.tickets: dict[Ticket, None] = {}  # those that are open, in order
        self.held: dict[Ticket, None] | None = None  # what is submitted during pause("wait")
        self.commands: deque[Command] = deque()
        self.undelivered: deque[Callable[[], list[Delivery]]] = deque()
        self.stale = False  # whether some of what runs or waits is of closed tickets
        self.closing = False
        self.numbers: Counter[str] = Counter()
        self.changed = threading.Condition(threading.RLock())
        self.thread = threading.Thread(target=self.run, name="scheduler", daemon=True)
        self.thread.start()

    def submit(
        self,
        work: Work,
        deliver: Callable[[list[Part]], None],
        fail: Callable[[Exception], None] | None = None,
    ) -> Ticket:
        """Starts work.

        Args:
          deliver: receives the new tokens of the work's completions.
          fail: receives the error that ended all of the work's completions, after which nothing is
            delivered. None: they end with `Finish.ABORT` instead.

        Raises:
          InputError: the model has no positions for it, or it asks for nothing.
          RunError: the scheduler is broken or closed.
        """
        check_work(work, self.policy.decoder.config.max_positions)
        ticket = Ticket(deliver, fail)
        ticket.left = {
            index: Running(work=work, index=index, owner=ticket) for index in range(len(work.seeds))
        }
        return self.enter(ticket)

    def score(
        self, tokens: Sequence[int], deliver: Callable[[list[float] | Exception], None]
    ) -> Ticket:
        """Computes log p(token t | tokens before t) at temperature 1; that of the first is nan.

        Raises:
          InputError: there are no tokens, or more than the model has positions.
          RunError: the scheduler is broken or closed.
        """
        check_scored(tokens, self.policy.decoder.config.max_positions)
        ticket = Ticket(deliver, deliver)
        ticket.scored = tokens
        return self.enter(ticket)

    def enter(self, ticket: Ticket) -> Ticket:
        """Queues new work, or refuses it if it cannot be done."""
        with self.changed:
            if self.closing or self.broken:
                raise RunError(self.broken or CLOSED)
            self.tickets[ticket] = None
            if self.held is None:
                self.queue(ticket)
            else:
                self.held[ticket] = None
            self.changed.notify_all()
        return ticket

    def queue(self, ticket: Ticket) -> None:
        if ticket.scored:
            self.scores.append(ticket)
        self.waiting.extend(ticket.left.values())

    def cancel(self, ticket: Ticket) -> None:
        """Gives work up: nothing more is delivered, and its slots are free at the next call."""
        with self.changed:
            ticket.cancelled = True
            if ticket.open:
                self.numbers["cancelled"] += ticket.count
                self.shut(ticket)
            self.changed.notify_all()

    def abort(self, tickets: Sequence[Ticket] | None = None) -> None:
        """Ends unfinished completions, of all tickets or the given, with `Finish.ABORT`.

        It does not wait. Tokens of the device call that is under way are delivered first.
        """
        with self.changed:
            chosen = list(self.tickets) if tickets is None else list(tickets)
            self.order(lambda: self.abort_now(ticket for ticket in chosen if ticket.left))

    def pause(self, mode: Literal["keep", "wait", "abort"], timeout: float) -> None:
        """Stops all work until `resume`, and returns once the device is idle.

        Args:
          mode: what becomes of earlier work: it stays and goes on after `resume`, it is waited
            for, or it is aborted.
          timeout: the most seconds to wait.

        Raises:
          RunError: it takes longer; the scheduler is then not paused.
        """
        with self.changed:
            if mode == "wait" and not self.paused:
                self.drain(timeout)
            self.paused = True
            if mode == "abort":
                self.abort()
            done = self.order(lambda: None)
        try:
            done.result(timeout)
        except TimeoutError:
            self.resume()
            raise RunError(f"The device call did not end within {timeout:g} seconds.") from None

    def drain(self, timeout: float) -> None:
        """Waits until all earlier work has ended, and holds new work back meanwhile."""
        self.held = held = {} if self.held is None else self.held
        idle = self.changed.wait_for(
            lambda: self.closing or held.keys() >= self.tickets.keys(), timeout
        )
        self.held = None
        for ticket in held:
            if ticket.open:
                self.queue(ticket)
        if not idle:
            self.changed.notify_all()
            raise RunError(f"The work did not end within {timeout:g} seconds.")

    def resume(self) -> None:
        """Ends a pause."""
        with self.changed:
            self.paused = False
            self.changed.notify_all()

    def replace(self, load: Callable[[Params], Params], version: str, *, recompute: bool) -> None:
        """Replaces the weights between two device calls, also while paused; returns afterwards.

        Args:
          load: returns the new parameters. It receives the present ones (`Policy.for_sampling`),
            which it may change, and runs in the scheduler's thread.
          version: the version of the new weights.
          recompute: whether the keys and values of running completions are computed again;
            otherwise those of the former weights stay.

        Raises:
          InputError: raised by `load`, which has changed nothing. The former weights stay.
          RunError: `load` failed otherwise. All work is refused until a later call succeeds.
        """
        self.order(lambda: self.replace_now(load, version, recompute)).result()

    def rename(self, version: str) -> None:
        """Changes the version of the weights, and not the weights."""
        self.version = version

    def counts(self) -> dict[str, float]:
        """Returns what the scheduler does and has done, in numbers."""
        with self.changed:
            batch, running = self.batch, len(self.batch.running())
            unfinished = sum(ticket.count for ticket in self.tickets)
            names = ("tokens", "finished", "aborted", "cancelled", "failed", "scored", "updates")
            return {name: float(self.numbers[name]) for name in names} | {
                "running": float(running),
                "waiting": float(max(0, unfinished - running)),
                "slots": float(self.slots),
                **batch.counts(),
            }

    def close(self) -> None:
        """Ends all work with `Finish.ABORT`, and the thread."""
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

    def shut(self, ticket: Ticket) -> None:
        """Forgets a ticket. What runs or waits of it is removed before the next device call."""
        self.stale |= bool(ticket.left or ticket.scored)
        ticket.open = False
        ticket.left.clear()
        del self.tickets[ticket]

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
        self.abort_now(list(self.tickets))
        self.batch.clear()

    def step(self, scores: Sequence[Ticket], new: Sequence[Running], decodes: bool) -> None:
        """Makes a device call, and delivers what the former has found while the device works."""
        try:
            scored = [
                (ticket, scored_tokens(self.policy.decoder, self.params, ticket.scored))
                for ticket in scores
            ]
            version, waiting = self.version, bool(self.waiting)
            if decodes:
                self.batch.admit(self.params, new, keep=waiting)
                self.batch.begin(self.params, waiting=waiting)
            self.deliver()
            self.undelivered += [partial(self.end_score, *pair) for pair in scored]
            if decodes:
                self.undelivered.append(partial(self.sort, self.batch.end(), version))
        except Exception as error:
            log.exception("The device failed.")
            self.deliver()
            self.batch.clear()
            send(self.failures(self.lost(), RunError(f"The device failed: {error}")))

    def deliver(self) -> None:
        """Delivers what the former device call has found."""
        while self.undelivered:
            send(self.undelivered.popleft()())

    def lost(self) -> list[Ticket]:
        """Returns the tickets of which something is neither waiting nor held."""
        with self.changed:
            queued = set(map(id, (*self.waiting, *self.scores)))
            return [
                ticket
                for ticket in self.tickets
                if ticket not in (self.held or ())
                and not queued.issuperset(map(id, ticket.left.values() or (ticket,)))
            ]

    def next(self) -> tuple[list[Command], list[Ticket], list[Running], bool]:
        """Returns what to do next, and waits until there is something.

        Returns:
          Commands; or what to score, what to place in free slots, and whether to decode.
        """
        with self.changed:
            while True:
                if self.stale:
                    self.purge()
                if self.commands or self.closing:
                    commands = list(self.commands)
                    self.commands.clear()
                    return commands, [], [], False
                if not self.paused and (self.scores or self.waiting or self.batch.running()):
                    break
                if self.undelivered:
                    return [], [], [], False
                self.changed.notify_all()  # `drain` waits for this
                if not self.changed.wait(IDLE_SECONDS) and not self.batch.running():
                    self.batch.clear()
            scores = [self.scores.popleft() for _ in range(min(len(self.scores), SCORES_PER_CALL))]
            new = taken(self.waiting, self.slots - len(self.batch.running()))
            return [], scores, new, bool(new or self.batch.running())

    def purge(self) -> None:
        """Removes what runs or waits of closed tickets."""
        self.batch.remove([x for x in self.batch.running() if not x.owner.open])
        self.waiting = deque(x for x in self.waiting if x.owner.open)
        self.scores = deque(x for x in self.scores if x.open)
        self.stale = False

    def sort(self, call: Ended, version: str) -> list[Delivery]:
        """Returns the deliveries of the tokens of a device call, one for each ticket."""
        parts: dict[Ticket, list[Part]] = {}
        failing: list[Ticket] = []
        drawn = call.drawn()
        with self.changed:
            for running, tokens, logprobs, alternatives, ended, nan in drawn:
                ticket, finish = running.owner, None
                if not ticket.open:
                    continue
                if nan:
                    failing.append(ticket)
                    continue
                if ended:
                    finish = Finish.STOP if tokens[-1] in running.work.end_ids else Finish.LENGTH
                    del ticket.left[running.index]
                    self.numbers["finished"] += 1
                self.numbers["tokens"] += len(tokens)
                part = Part(running.index, tokens, logprobs, version, alternatives, finish)
                parts.setdefault(ticket, []).append(part)
                if not ticket.left:
                    self.shut(ticket)
        found = [(ticket, ticket.deliver, several) for ticket, several in parts.items()]
        return found + self.failures(failing, RunError(NOT_NUMBERS))

    def end_score(self, ticket: Ticket, logprobs_T: jax.Array) -> list[Delivery]:
        """Waits for log-probabilities."""
        found = np.asarray(logprobs_T)[: len(ticket.scored) - 1].tolist()
        if any(map(math.isnan, found)):
            return self.failures([ticket], RunError(NOT_NUMBERS))
        with self.changed:
            if ticket.open:
                self.shut(ticket)
            self.numbers["scored"] += 1
        return [(ticket, ticket.deliver, [math.nan, *found])]

    def failures(self, tickets: Iterable[Ticket], error: Exception) -> list[Delivery]:
        """Ends tickets with an error, and returns the deliveries of it."""
        return self.ended(tickets, "failed", lambda ticket: ticket.failed(error))

    def abort_now(self, tickets: Iterable[Ticket]) -> None:
        send(self.ended(tickets, "aborted", Ticket.aborted))

    def ended(
        self, tickets: Iterable[Ticket], how: str, delivery: Callable[[Ticket], Delivery]
    ) -> list[Delivery]:
        """Ends and counts those tickets that are open, and returns their last deliveries."""
        found: list[Delivery] = []
        with self.changed:
            for ticket in tickets:
                if ticket.open:
                    self.numbers[how] += ticket.count
                    found.append(delivery(ticket))
                    self.shut(ticket)
        return found

    def replace_now(self, load: Callable[[Params], Params], version: str, recompute: bool) -> None:
        try:
            self.params = placed(self.policy, load(self.params))
        except InputError:
            raise
        except Exception as error:
            self.broken = f"The weights could not be replaced: {error}"
            send(self.failures(list(self.tickets), RunError(self.broken)))
            self.batch.clear()
            raise RunError(self.broken) from error
        self.version, self.broken = version, None
        self.numbers["updates"] += 1
        self.batch.contexts.clear()
        if recompute:
            with self.changed:
                self.waiting.extendleft(reversed(self.batch.running()))
                self.batch.clear()
