import numpy as np

from rl4p.rollout.engine import finish
from rl4p.types import Finish


def test_every_end_token_ends_a_completion():
    assert finish(np.int32([1, 9]), (7, 9)) == Finish.STOP
    assert finish(np.int32([7]), (7, 9)) == Finish.STOP
    assert finish(np.int32([9, 1]), (7, 9)) == Finish.LENGTH
