"""Tests grades without training, on rewards whose grades are known."""

from dataclasses import dataclass

import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Episode, Prompt
from rl4p.reward.weighted import Weighted
from rl4p.runs import grading
from rl4p.runs.grading import Grades, grade, text_reward

GRADES = {"?": float("nan"), "-": None}


@dataclass(frozen=True, kw_only=True)
class Length:
    """The length of a response; some texts have no grade, or do not fit the term."""

    weight: float = 2.0

    def __call__(self, episodes):
        return [GRADES.get(each.response, float(len(each.response))) for each in episodes]


@dataclass(frozen=True, kw_only=True)
class Size:
    """The number of samples that a call sees of a prompt."""

    weight: float = 0.0
    whole_groups: bool = True

    def __call__(self, groups):
        return [[float(len(group))] * len(group) for group in groups]


def episodes(*responses):
    """Returns responses, each to the prompt that its last letter names."""
    prompts = {
        name: Prompt(id=name, question=name, answer="", task="t", tokens=())
        for name in {text[-1] for text in responses}
    }
    return [Episode(prompt=prompts[text[-1]], response=text) for text in responses]


def test_an_invalid_response_has_no_total_and_others_do():
    reward = Weighted(terms={"length": Length(), "size": Size()}, max_invalid=1.0)
    assert grade(reward, episodes("ab", "?", "-")) == [
        Grades(reward=4.0, terms={"length": 2.0, "size": 1.0}, valid=True),
        Grades(reward=None, terms={"length": None, "size": None}, valid=False),
        Grades(reward=0.0, terms={"length": None, "size": 1.0}, valid=True),
    ]


def test_parts_keep_prompts_whole_and_the_order_of_the_rows(monkeypatch):
    monkeypatch.setattr(grading, "AT_A_TIME", 3)
    calls = []

    @dataclass(frozen=True, kw_only=True)
    class Counted(Size):
        def __call__(self, groups):
            calls.append([len(group) for group in groups])
            return super().__call__(groups)

    reward = Weighted(terms={"length": Length(), "size": Counted()})
    found = grade(reward, episodes("xa", "xxb", "xxxa", "c", "xxxxa", "xxxxxd", "xa"))
    assert [each.terms["length"] for each in found] == [2, 3, 4, 1, 5, 6, 2]
    assert [each.terms["size"] for each in found] == [4, 1, 4, 1, 4, 1, 4]
    assert calls == [[4], [1, 1, 1]]


def test_the_share_of_invalid_responses_is_that_of_the_reward():
    with pytest.raises(RunError, match="100% of the samples could not be graded"):
        grade(Weighted(terms={"length": Length()}), episodes("?"))


def test_no_responses_have_no_grades():
    assert grade(Weighted(terms={"length": Length()}), []) == []


def test_a_reward_that_needs_arrays_is_refused():
    reward = Weighted(terms={})
    assert text_reward(reward) is reward
    with pytest.raises(InputError, match=r"object cannot .* reward=router, or grade=false\.$"):
        text_reward(object(), otherwise=", or grade=false")
