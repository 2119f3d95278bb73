import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Finish, Sampling
from rl4p.engine import sequence as sequences
from rl4p.engine.decode import MOST_STEPS, Outcome
from rl4p.engine.sequence import Ended, Slots, TokenSequence, check_request, key_data, key_shape
from rl4p.model.sampling import Draws


def test_all_positions_can_be_used():
    check_request((1, 2), 1, 6, 8)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"context": ()}, "at least one token"),
        ({"completions": 0}, "one random key"),
        ({"max_tokens": 0}, "max_tokens=1"),
        ({"max_tokens": 7}, "2 tokens with max_tokens=7 is longer than the 8 positions"),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused(fields, why):
    with pytest.raises(InputError, match=why):
        check_request(
            **{"context": (1, 2), "completions": 1, "max_tokens": 6, "longest": 8} | fields
        )


def test_a_sequence_that_its_key_has_begun_counts_its_new_tokens():
    sequence = TokenSequence(
        context=(1, 2, 3),
        key=np.zeros(2, np.uint32),
        max_tokens=4,
        end_ids=(),
        drawn=5,
        min_tokens=2,
    )
    assert (sequence.length, sequence.needs_extras) == (3, True)
    sequence.drawn += 2
    assert (sequence.length, sequence.needs_extras) == (5, False)


def sequence(tokens=(5, 6), end_ids=(1,), **fields):
    return TokenSequence(
        context=tokens, key=np.uint32([0, 9]), max_tokens=4, end_ids=end_ids, **fields
    )


def test_a_sequence_is_rearranged_with_all_that_it_needs():
    several = Slots(4)
    first = sequence(sampling=Sampling(temperature=0.5, top_k=3, top_p=0.9))
    last = sequence(end_ids=tuple(range(6)), min_tokens=2, drawn=3)
    several.put(1, first, 0)
    several.put(3, last, 7)
    assert several.free() == [0, 2]
    fewer = several.rearranged([3, 1])
    assert fewer.sequences == [last, first]
    assert fewer.constants.ends_nE[0, :6].tolist() == list(range(6))
    assert fewer.constants.ends_nE[1].tolist() == [1] + [-1] * 7
    assert fewer.constants.padding_n.tolist() == [7, 0]
    assert fewer.constants.limit_n.tolist() == [7, 4]
    assert fewer.constants.least_n.tolist() == [5, 0]
    assert fewer.constants.keys_n.tolist() == [[0, 9]] * 2
    assert fewer.state.token_n.tolist() == [6, 6]
    assert fewer.state.length_n.tolist() == [2, 2]
    assert fewer.state.drawn_n.tolist() == [3, 0]
    own = fewer.distributions
    assert own.temperature_n.tolist() == [0, 0.5]
    assert own.top_k_n.tolist() == [0, 3]
    assert own.top_p_n.tolist() == [1, np.float32(0.9)]
    fewer.clear(0)
    assert fewer.running() == [first]
    assert fewer.state.active_n.tolist() == [False, True]


def test_a_call_advances_the_slots_that_were_active():
    slots = Slots(2)
    slots.put(0, sequence(drawn=2), 0)
    outcome = Outcome(
        steps=2,
        drawn_n=np.int32([4, 0]),
        active_n=np.array([True, False]),
        tokens_nM=np.int32([[8, 9], [7, 7]]),
        logprobs_nM=np.zeros((2, 2), np.float32),
    )
    assert slots.advance(outcome).tolist() == [2, 0]
    assert slots.state.token_n.tolist() == [9, 0]
    assert slots.state.length_n.tolist() == [4, 1]
    assert slots.state.drawn_n.tolist() == [4, 0]


def test_keys_have_the_shape_of_jax():
    data = jax.random.key_data(jax.random.key(0))
    assert (key_shape().shape, key_shape().dtype) == (data.shape, data.dtype)


def test_new_slots_trace_nothing(monkeypatch):
    """A batch makes new slots each time that its size changes."""
    key_shape()
    monkeypatch.setattr(jax, "eval_shape", lambda *_: pytest.fail("A program is traced."))
    assert len(Slots(2).sequences) == 2


@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**32 - 1])
def test_keys_are_those_of_jax(seed):
    assert key_data(seed).tolist() == jax.random.key_data(jax.random.key(seed)).tolist()


def test_keys_of_large_seeds_have_both_words(monkeypatch):
    assert key_data((3 << 32) + 5).tolist() == [3, 5]
    monkeypatch.setattr(sequences, "key_shape", lambda: jax.ShapeDtypeStruct((4,), np.uint32))
    assert key_data((3 << 32) + 5).tolist() == [3, 5, 3, 5]


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


def test_only_log_probabilities_of_new_tokens_count_as_not_numbers():
    logprobs_nM = np.zeros((2, MOST_STEPS), np.float32)
    logprobs_nM[1, 2] = np.nan
    assert not call(logprobs_nM).not_numbers()
    logprobs_nM[0, 2] = np.nan
    ended = call(logprobs_nM)
    assert ended.not_numbers() == [ended.slots[0][1]]
