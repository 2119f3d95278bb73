from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rl4p.errors import RunError
from rl4p.reward.weighted import Weighted

NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True, kw_only=True)
class Gives:
    """A term that returns the same grades for every batch, or raises an exception."""

    grades: Any
    weight: float = 1.0

    def __call__(self, episodes):
        if isinstance(self.grades, Exception):
            raise self.grades
        return self.grades


def grade(max_invalid=1.0, rows=4, **terms):
    episodes = [None] * rows  # the terms here do not read them
    return Weighted(terms=terms, max_invalid=max_invalid)(None, episodes)  # type: ignore[arg-type]


def test_the_total_is_weighted_and_the_terms_are_not():
    rewards = grade(
        a=Gives(grades=[1, 0, True, 0.5], weight=2.0), b=Gives(grades=[0, 1, 1, -1], weight=0.5)
    )
    np.testing.assert_array_equal(rewards.total_B, [2, 0.5, 2.5, 0.5])
    np.testing.assert_array_equal(rewards.terms["a"], [1, 0, 1, 0.5])
    np.testing.assert_array_equal(rewards.terms["b"], [0, 1, 1, -1])
    assert rewards.valid_B.all()
    assert {x.dtype for x in (rewards.total_B, *rewards.terms.values())} == {np.dtype("float32")}


@pytest.mark.parametrize("failure", [None, NAN, INF, -INF])
def test_a_grade_that_is_none_makes_its_sample_invalid_for_all_terms(failure):
    rewards = grade(a=Gives(grades=[1, failure, 1, 1]), b=Gives(grades=[2, 2, 0, 2]))
    np.testing.assert_array_equal(rewards.valid_B, [True, False, True, True])
    np.testing.assert_array_equal(rewards.total_B, [3, 0, 1, 3])
    np.testing.assert_array_equal(rewards.terms["b"], [2, 0, 0, 2])


def test_numpy_grades_and_generators_are_grades_too():
    rewards = grade(
        a=Gives(grades=np.float32([1, 0, NAN, 1])), b=Gives(grades=iter([1, 1, 1, None]))
    )
    np.testing.assert_array_equal(rewards.valid_B, [True, True, False, False])


def test_a_reward_of_no_terms_is_zero_and_valid():
    rewards = grade()
    assert rewards.valid_B.tolist() == [True] * 4
    assert rewards.total_B.tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (ZeroDivisionError("by zero"), r"reward\.terms\.b raised ZeroDivisionError: by zero\."),
        (["x"] * 4, r"reward\.terms\.b raised ValueError: "),
        (None, r"reward\.terms\.b raised TypeError: "),
        ([1, 2, 3], r"reward\.terms\.b gave 3 grades for 4 responses\."),
        ([1] * 5, r"reward\.terms\.b gave 5 grades for 4 responses\."),
        ([], r"reward\.terms\.b gave 0 grades for 4 responses\."),
    ],
    ids=range(6),
)
def test_a_broken_term_is_named(broken, sentence):
    with pytest.raises(RunError, match=sentence):
        grade(a=Gives(grades=[1] * 4), b=Gives(grades=broken))


def test_too_many_invalid_samples_stop_the_run():
    half = Gives(grades=[1, None, None, 1])
    assert not grade(max_invalid=0.5, a=half).valid_B.all()
    with pytest.raises(
        RunError, match=r"^50% of the samples .* is 49%\); failed grades by term, of 4 .*: \{'a': 2"
    ):
        grade(max_invalid=0.49, a=half, b=Gives(grades=[1] * 4))
    with pytest.raises(RunError, match=r"^100% of the samples"):
        grade(max_invalid=0.5, a=Gives(grades=[None] * 4))


def test_a_run_stops_only_above_the_share_that_is_allowed():
    one = Gives(grades=[1, None, 1, 1])
    assert grade(max_invalid=0.25, a=one).valid_B.tolist() == [True, False, True, True]
    with pytest.raises(RunError, match=r"^25% of the samples .*max_invalid is 24%"):
        grade(max_invalid=0.24, a=one)
    with pytest.raises(RunError):
        grade(max_invalid=0.0, a=one)
    assert grade(max_invalid=0.0, a=Gives(grades=[1] * 4)).valid_B.all()


def test_half_of_the_samples_may_be_invalid_unless_told():
    assert Weighted(terms={}).max_invalid == 0.5
