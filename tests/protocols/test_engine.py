import numpy as np

from rl4p.base.types import Finish
from rl4p.protocols.engine import finish


def test_every_end_token_ends_a_completion():
    assert finish(np.int32([1, 9]), (7, 9)) == Finish.STOP
    assert finish(np.int32([7]), (7, 9)) == Finish.STOP
    assert finish(np.int32([9, 1]), (7, 9)) == Finish.LENGTH


def test_what_ended_before_its_limit_was_aborted():
    assert finish(np.int32([9, 1]), (7, 9), 3) == Finish.ABORT
    assert finish(np.int32([]), (7, 9), 3) == Finish.ABORT
    assert finish(np.int32([9, 1]), (7, 9), 2) == Finish.LENGTH
    assert finish(np.int32([9]), (7, 9), 3) == Finish.STOP
