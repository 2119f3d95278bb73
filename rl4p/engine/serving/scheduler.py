"""The scheduler of the server: a driver in a thread, for many clients."""

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partial

from rl4p.base.errors import RunError
from rl4p.base.types import Params
from rl4p.engine.batch import placed
from rl4p.engine.driver import CallSteps, Command, Delivery, Driver, Submission
from rl4p.engine.layout import Layout, few_tokens
from rl4p.engine.sequence import TokenSequence
from rl4p.engine.serving.web_server import LEAST_READ, STALLED_SECONDS
from rl4p.model.policy import Policy, padded_width

log = logging.getLogger(__name__)

SIZES = (4, 16, 32)  # numbers of slots; each compiles once
PROMPT_TOKENS_PER_CALL = 2048  # prefilled between two device calls; running sequences wait
IDLE_SECONDS = 10.0  # after which an idle server releases its cache
POLL_SECONDS = 0.05  # between two looks at what the clients have read
STALLED = RunError(
    f"The client read less than {LEAST_READ >> 10} KiB of its response in {STALLED_SECONDS:.0f} "
    "seconds."
)


def layout(policy: Policy, slots: int) -> Layout:
    """Returns the sizes of a batch whose sequences come and go."""
    shards = policy.sampling_mesh.row_shards
    return Layout(
        sizes=sorted({-(-min(size, slots) // shards) * shards for size in (*SIZES, slots)}),
        most=padded_width(policy.decoder.config.max_positions),
        prefill_rows=8,
        prefill_tokens=256,
        tokens_per_call=PROMPT_TOKENS_PER_CALL,
        few_tokens=few_tokens(policy),
        patience=8,
        shrinks=True,
    )


class Suspended:
    """Sequences without a slot, until their clients have read what was sent to them.

    Attributes:
      since: by sequence, the time from which its client has to read, and the unsent bytes then.
    """

    def __init__(self) -> None:
        self.since: dict[TokenSequence, tuple[float, int]] = {}
        self.looked = 0.0

    def take(self, running: Sequence[TokenSequence], most: int) -> list[TokenSequence]:
        """Suspends sequences with unsent bytes, at most so many, and returns them."""
        if most <= 0:
            return []
        now, unsent = time.monotonic(), unsent_bytes(running)
        new = [x for x in running if unsent[x.owner]][:most]
        self.since |= {x: (now, unsent[x.owner]) for x in new}
        return new

    def look(self, *, all_of_them: bool) -> tuple[list[TokenSequence], list[Submission]]:
        """Returns the sequences that may go on, and the submissions to end with `STALLED`.

        Those are the ones whose clients read as little as a connection does not allow.

        Args:
          all_of_them: whether all sequences may go on.
        """
        now = time.monotonic()
        if now - self.looked < POLL_SECONDS and not all_of_them:
            return [], []
        self.looked, unsent = now, unsent_bytes(self.since)
        back, stalled = [], {}
        for sequence, (then, before) in list(self.since.items()):
            owner, left = sequence.owner, unsent[sequence.owner]
            if not owner.open:
                del self.since[sequence]
            elif all_of_them or not left:
                del self.since[sequence]
                back.append(sequence)
            elif now - then >= STALLED_SECONDS and left > before - LEAST_READ:
                stalled[owner] = None
            elif now - then >= STALLED_SECONDS:
                self.since[sequence] = now, left
        return back, list(stalled)


def unsent_bytes(sequences: Iterable[TokenSequence]) -> dict[Submission, int]:
    return {owner: owner.unsent() for owner in {x.owner: None for x in sequences}}


class Scheduler(Driver):
    """A driver in a thread of its own. Any thread may call its methods.

    It delivers from its own thread, at most once per device call and submission.

    Args:
      policy, params: the policy, and its trained parameters.
      version: the weight version of the parameters.
      slots: the most sequences that are decoded at a time.
    """

    def __init__(self, policy: Policy, params: Params, version: str, *, slots: int = 32) -> None:
        sampling = placed(policy, policy.for_sampling(params))
        sizes = layout(policy, slots)
        super().__init__(
            policy, sampling, version, sizes, slots=slots, call_steps=CallSteps(), checks=True
        )
        self.suspended = Suspended()
        self.thread = threading.Thread(target=self.run, name="scheduler", daemon=True)
        self.thread.start()

    def counts(self) -> dict[str, float]:
        return super().counts() | {"suspended": float(len(self.suspended.since))}

    def close(self) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self.thread.join()

    # The rest runs in the scheduler's thread.
    def run(self) -> None:
        while True:
            commands, work = self.wait()
            try:
                if commands or work is None:
                    self.deliver()
                else:
                    self.run_call(*work)
            except Exception as error:
                log.exception("The device failed.")
                self.recover(error)
            for command, done in commands:
                try:
                    done.set_result(command())
                except Exception as error:  # noqa: BLE001 - the caller raises it
                    done.set_exception(error)
            with self.changed:
                if self.closing and not self.commands:  # and nobody orders another one
                    break
        self.abort_now()
        self.batch.clear()

    def recover(self, error: Exception) -> None:
        """Delivers what a failing device has computed, and ends what it has lost."""
        while self.undelivered:
            try:
                self.deliver()
            except Exception:
                log.exception("The results of the device are lost.")
        self.batch.clear()
        with self.changed:
            queued = {*self.waiting, *self.suspended.since, *self.scores}
            lost = [
                x
                for x in self.submissions
                if x not in self.held_back
                # all its unfinished sequences, or its score, wait
                and not all(each in queued for each in x.left.values() or (x,))
            ]
        self.send(self.end_all(lost, RunError(f"The device failed: {error}")))

    def wait(self) -> tuple[list[Command], tuple[list[Submission], list[TokenSequence]] | None]:
        """Waits for commands or work; returns both, None if there are only results to deliver."""
        with self.changed:
            while True:
                if self.stale:
                    self.purge()
                if self.commands or self.closing:
                    commands = list(self.commands)
                    self.commands.clear()
                    return commands, None
                if self.suspended.since and not self.paused:
                    back, stalled = self.suspended.look(all_of_them=bool(self.drains))
                    self.waiting += back
                    if stalled:
                        self.undelivered.append(partial(self.end_all, stalled, STALLED))
                if not self.paused and (self.scores or self.waiting or self.batch.slots.running()):
                    break
                if self.undelivered:
                    return [], None
                self.changed.notify_all()  # `drain` waits for this
                seconds = POLL_SECONDS if self.suspended.since else IDLE_SECONDS
                idle = not self.changed.wait(seconds)
                if idle and not (self.suspended.since or self.batch.slots.running()):
                    self.batch.clear()
            if not self.drains:
                running = self.batch.slots.running()
                most = len(self.waiting) - (self.slots - len(running))
                self.batch.remove(self.suspended.take(running, most))
            return [], self.take()

    def send(self, deliveries: Sequence[Delivery]) -> None:
        """Makes deliveries; one that fails ends no other."""
        for delivery in deliveries:
            try:
                super().send([delivery])
            except Exception:
                log.exception("The delivery of tokens failed.")
