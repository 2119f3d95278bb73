"""Streams whose clients do not read: their sequences give up their slots to others that wait."""

import time
from collections.abc import Iterable, Iterator, Sequence

from rl4p.base.errors import RunError
from rl4p.engine.sequence import TokenSequence
from rl4p.engine.serving.submissions import Submission
from rl4p.engine.serving.web_server import LEAST_READ, STALLED_SECONDS

POLL_SECONDS = 0.05  # between two looks at what the clients have read
STALLED = RunError(
    f"The client read less than {LEAST_READ >> 10} KiB of its response in {STALLED_SECONDS:.0f} "
    "seconds."
)


class Suspended:
    """Sequences without a slot, until their clients have read what was sent to them.

    Attributes:
      since: by sequence, the time from which its client has to read, and the unsent bytes then.
    """

    def __init__(self) -> None:
        self.since: dict[TokenSequence, tuple[float, int]] = {}
        self.looked = 0.0

    def __len__(self) -> int:
        return len(self.since)

    def __iter__(self) -> Iterator[TokenSequence]:
        return iter(self.since)

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
    """Returns the unsent bytes of each submission."""
    return {owner: owner.unsent() for owner in {x.owner: None for x in sequences}}
