"""The new tokens of a device call."""

import jax.numpy as jnp
import numpy as np

from rl4p.base.types import Finish
from rl4p.engine.chunk import Ended
from rl4p.engine.decode import MOST_STEPS, Outcome
from rl4p.engine.sequence import TokenSequence
from rl4p.model.sampling import Draws


def call(logprobs_nM):
    """Returns a call of two steps and two slots, whose sequences drew three tokens and one."""
    tokens_nM = np.arange(2 * MOST_STEPS, dtype=np.int32).reshape(2, -1)
    none_nM0 = jnp.zeros((2, MOST_STEPS, 0), jnp.int32)
    outcome = Outcome(2, np.int32([3, 1]), np.array([True, False]), tokens_nM, logprobs_nM)
    first, second = (
        TokenSequence(context=(5,), key=np.uint32([0, i]), max_tokens=9, end_ids=(MOST_STEPS,))
        for i in range(2)
    )
    drawn = Draws(tokens_nM, logprobs_nM, none_nM0, none_nM0)
    return Ended(outcome, drawn, [(0, first, 3, True), (1, second, 1, False)], 2, 0.0)


def test_a_chunk_has_the_new_tokens_of_its_sequence():
    first, second = call(np.zeros((2, MOST_STEPS), np.float32)).chunks("7")
    assert (first.tokens, first.finish, first.version) == ([0, 1, 2], None, "7")
    assert (second.tokens, second.finish) == ([MOST_STEPS], Finish.STOP)
    assert first.sequence.tokens == [5, 0, 1, 2]


def test_only_log_probabilities_of_new_tokens_can_spoil_a_sequence():
    logprobs_nM = np.zeros((2, MOST_STEPS), np.float32)
    logprobs_nM[1, 2] = np.nan
    assert not call(logprobs_nM).spoiled()
    logprobs_nM[0, 2] = np.nan
    spoiled = call(logprobs_nM)
    assert spoiled.spoiled() == [spoiled.slots[0][1]]
