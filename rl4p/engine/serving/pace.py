"""The sizes of the server's device calls: slots, columns of the cache and decode steps."""

import math

from rl4p.engine.chunk import Ended
from rl4p.engine.decode import MOST_STEPS
from rl4p.engine.layout import Layout, few_tokens
from rl4p.model.policy import Policy, padded_width

SIZES = (4, 16, 32)  # numbers of slots; each compiles once
SECONDS_PER_CALL = 0.03  # shorter calls cost more on the host, longer ones delay new requests
FIRST_STEPS = 8  # of a call while the seconds of a step are not known
SLOWER = 1.02  # the most by which the estimated seconds of a step grow from call to call


def layout(policy: Policy, slots: int) -> Layout:
    """Returns the sizes of a batch whose sequences come and go."""
    shards = policy.sampling_mesh.row_shards
    return Layout(
        sizes=sorted({-(-min(size, slots) // shards) * shards for size in (*SIZES, slots)}),
        most=padded_width(policy.decoder.config.max_positions),
        prefill_rows=8,
        prefill_tokens=256,
        few_tokens=few_tokens(policy),
        patience=8,
        shrinks=True,
    )


class Pace:
    """Learns the seconds of a decode step, so that a call takes about `SECONDS_PER_CALL`."""

    def __init__(self) -> None:
        self.seconds_per_step: dict[int, float] = {}  # by the number of slots

    def steps(self, slots: int) -> int:
        """Returns the number of decode steps of the next device call."""
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
