import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.engine.sequence import TokenSequence, check_request


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
