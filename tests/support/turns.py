"""The returns of turns in plain Python, an oracle for ours, and the comparison of two runs."""

import numpy as np
import pytest

from rl4p.base.types import Trajectories


def rewards_of_turns(rewards, turns):
    """Returns the reward of each turn of each row, in float64; the last gets what is left."""
    total = np.asarray(rewards.total_B, np.float64)
    own = np.zeros((len(turns), 0)) if rewards.tokens_BT is None else rewards.tokens_BT
    own = np.asarray(own, np.float64)
    sums = [
        [own[row, turn].sum() if own.size else 0.0 for turn in x] for row, x in enumerate(turns)
    ]
    return [[*x[:-1], total[row] - sum(x[:-1])] for row, x in enumerate(sums)]


def returns_of_turns(rewards, turns, gamma):
    """Returns G_k = r_k + gamma G_{k+1} of each turn of each row, in float64."""
    returns = []
    for own in rewards_of_turns(rewards, turns):
        later, reverse = 0.0, []
        for reward in own[::-1]:
            later = reward + gamma * later
            reverse.append(later)
        returns.append(reverse[::-1])
    return returns


def assert_same(ours, theirs):
    """Checks that two runs sampled and learned the same.

    Rounding depends on which requests are decoded together, and so on the time of each answer.
    """
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert tuple(one.episodes) == tuple(other.episodes)
        for name in Trajectories.__dataclass_fields__:
            mine, its = (getattr(each.trajectories, name) for each in (one, other))
            if mine is its is None:
                continue
            np.testing.assert_allclose(
                mine,
                its,
                atol=1e-4 if name == "behaviour_logprobs_BT" else 0,
                err_msg=name,
            )
        ours, theirs = (each.metrics["update/grad_norm"] for each in (one, other))
        assert ours == pytest.approx(theirs, rel=1e-3)
