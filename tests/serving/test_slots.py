from collections import deque

import jax
import pytest

from rl4p.serving import slots
from rl4p.serving.slots import Running, Slots, key_data, taken
from rl4p.serving.work import Work
from rl4p.types import Sampling


def running(tokens=(5, 6), end_ids=(1,), **fields):
    work = Work(
        tokens=tokens, seeds=[9], max_tokens=4, sampling=Sampling(), end_ids=end_ids, **fields
    )
    return Running(work=work, index=0, owner=None)


@pytest.mark.parametrize("seed", [0, 7, 2**31, 2**32 - 1])
def test_keys_are_those_of_jax(seed):
    assert key_data(seed, 2).tolist() == jax.random.key_data(jax.random.key(seed)).tolist()


def test_keys_of_large_seeds_have_both_words():
    assert key_data((3 << 32) + 5, 2).tolist() == [3, 5]
    assert key_data((3 << 32) + 5, 4).tolist() == [3, 5, 3, 5]


def test_a_completion_moves_with_all_that_it_needs():
    several = Slots(4)
    first, last = running(), running(end_ids=tuple(range(6)), min_tokens=2)
    several.put(1, first)
    several.put(3, last)
    assert several.free() == [0, 2]
    fewer = several.moved([3, 1], 2)
    assert fewer.rows == [last, first]
    assert fewer.constants.ends_nE[0, :6].tolist() == list(range(6))
    assert fewer.constants.ends_nE[1].tolist() == [1] + [-1] * 7
    assert fewer.constants.least_n.tolist() == [2, 0]
    assert fewer.state.token_n.tolist() == [6, 6]
    fewer.clear(0)
    assert fewer.running() == [first]
    assert fewer.state.active_n.tolist() == [False, True]


def test_few_tokens_are_prefilled_between_two_calls(monkeypatch):
    monkeypatch.setattr(slots, "PROMPT_TOKENS_PER_CALL", 32)
    same, other = (7,) * 16, (8,) * 16
    waiting = deque([running(same), running(same), running(other), running((9,)), running(same)])
    assert [x.tokens[0] for x in taken(waiting, 8)] == [7, 7, 8]
    assert [x.tokens[0] for x in taken(waiting, 1)] == [9]
    long = deque([running((3,) * 100), running()])
    assert len(taken(long, 8)) == 1  # a long context waits for nobody
