import pytest

from rl4p.errors import InputError
from rl4p.serving.work import Work, check_scored, check_work
from rl4p.types import Sampling


def work(tokens=(1, 2), seeds=(0,), max_tokens=6):
    return Work(tokens=tokens, seeds=seeds, max_tokens=max_tokens, sampling=Sampling(), end_ids=())


def test_all_positions_can_be_used():
    check_work(work(), 8)
    check_scored([1] * 8, 8)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"tokens": ()}, "at least one token"),
        ({"seeds": ()}, "one seed"),
        ({"max_tokens": 0}, "max_tokens=1"),
        ({"max_tokens": 7}, "2 tokens with max_tokens=7 is longer than the 8 positions"),
    ],
)
def test_work_that_cannot_be_done_is_refused(fields, why):
    with pytest.raises(InputError, match=why):
        check_work(work(**fields), 8)


@pytest.mark.parametrize("count", [0, 9])
def test_tokens_that_cannot_be_scored_are_refused(count):
    with pytest.raises(InputError, match=f"{count} tokens cannot be scored"):
        check_scored([1] * count, 8)
