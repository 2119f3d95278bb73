import math
from dataclasses import replace

import pytest

from rl4p.configuration import compose
from rl4p.reward.overlong import Overlong
from rl4p.runs.build import build_phases


@pytest.fixture
def with_lengths(make_episodes):
    def with_lengths(*counts):
        episodes = make_episodes(("text",) * len(counts))
        return [replace(each, tokens=n) for each, n in zip(episodes, counts, strict=True)]

    return with_lengths


def test_the_penalty_grows_along_the_ramp(with_lengths):
    """The values of the paper's sizes: L = 20480 and C = 4096."""
    episodes = with_lengths(1, 16384, 16385, 18432, 20480, 20481, 10**6)
    expected = [0, 0, -1 / 4096, -0.5, -1, -1, -1]
    assert Overlong(max_tokens=20480)(episodes) == pytest.approx(expected)
    assert Overlong(max_tokens=10, ramp=1.0)(with_lengths(0, 5, 10)) == pytest.approx([0, -0.5, -1])


def test_a_response_of_unknown_length_is_invalid(with_lengths):
    first, second = Overlong(max_tokens=10)(with_lengths(None, 1))
    assert math.isnan(first)
    assert second == 0


def test_the_limit_is_that_of_the_run():
    words = ["+term@reward.terms.overlong=overlong", "max_response_tokens=123"]
    assert build_phases(compose(words)).reward.terms["overlong"].max_tokens == 123
