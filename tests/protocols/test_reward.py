"""Tests which rewards grade texts alone, and which terms are opened."""

from rl4p.protocols.reward import OpensTerm, TextReward
from rl4p.reward.answers import Correct
from rl4p.reward.router import Router
from rl4p.reward.weighted import Weighted


def test_the_rewards_of_rl4p_grade_texts():
    weighted = Weighted(terms={})
    assert isinstance(weighted, TextReward)
    assert isinstance(Router(tasks={"a": weighted}), TextReward)
    assert not isinstance(Correct(), TextReward)


def test_a_term_is_opened_if_it_can_be():
    class Opens(Correct):
        def open(self):
            return self

    assert isinstance(Opens(), OpensTerm)
    assert not isinstance(Correct(), OpensTerm)
