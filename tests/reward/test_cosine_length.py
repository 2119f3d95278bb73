import math
from dataclasses import dataclass, replace

import pytest

from rl4p.base.types import Finish
from rl4p.configuration import compose
from rl4p.reward.correct import Correct
from rl4p.reward.cosine_length import CosineLength
from rl4p.runs.build import build_phases

RIGHT, WRONG = "#### 1", "#### 2"


@pytest.fixture
def episode(make_episodes):
    def episode(response, tokens, finish=Finish.STOP):
        return replace(make_episodes((response,))[0], tokens=tokens, finish=finish)

    return episode


@pytest.mark.parametrize(
    ("response", "tokens", "grade"),
    [
        (RIGHT, 0, 2.0),
        (RIGHT, 25, 1.5 + math.sqrt(0.5) / 2),
        (RIGHT, 50, 1.5),
        (RIGHT, 99, 1.0),
        (RIGHT, 100, -10.0),
        (WRONG, 0, -10.0),
        (WRONG, 50, -5.0),
        (WRONG, 99, 0.0),
        (WRONG, 100, -10.0),
    ],
)
def test_right_responses_should_be_short_and_wrong_ones_long(episode, response, tokens, grade):
    (given,) = CosineLength(of=Correct(), max_tokens=100)([episode(response, tokens)])
    assert given == pytest.approx(grade, abs=3e-3)


@pytest.mark.parametrize("finish", [Finish.LENGTH, Finish.ABORT])
def test_a_response_that_was_cut_exceeds_the_limit(episode, finish):
    term = CosineLength(of=Correct(), max_tokens=100, exceeded=-3.0)
    assert term([episode(RIGHT, 20, finish)]) == [-3.0]
    assert term([episode(RIGHT, 20, None)])[0] > 1


@dataclass(frozen=True, kw_only=True)
class Given:
    """A term with grades of its own, which it has only while it is open."""

    grades: tuple
    weight: float = 1.0

    def open(self):
        return Opened(self.grades)


class Opened:
    def __init__(self, grades):
        self.grades, self.closed = grades, False

    def __call__(self, episodes):
        return self.grades

    def close(self):
        self.closed = True


def test_no_grade_and_no_length_stay_apart_from_wrong(episode):
    term = CosineLength(of=Given(grades=(None, math.nan, 1.0, 1.0)), max_tokens=100).open()
    rows = [episode("", 0), episode("", 0), episode("", None), episode("", 0)]
    none, *invalid, right = term(rows)
    assert none is None
    assert all(map(math.isnan, invalid))
    assert right == 2.0
    assert not term.live.closed
    term.close()
    assert term.live.closed


def test_a_term_without_an_open_form_is_used_as_it_is(episode):
    term = CosineLength(of=Correct(), max_tokens=100).open()
    assert term([episode(RIGHT, 0)]) == [2.0]
    term.close()


def test_what_has_no_effect_is_refused():
    with pytest.raises(ValueError, match=r"of\.weight=0\.5 has no effect"):
        CosineLength(of=Correct(weight=0.5), max_tokens=100)
    with pytest.raises(ValueError, match="of must be a term"):
        CosineLength(of="correct", max_tokens=100)


def test_the_limit_is_that_of_the_run():
    words = ["+term@reward.terms.length=cosine_length", "max_response_tokens=123"]
    words.append("reward.terms.length.of.extract=boxed")
    term = build_phases(compose(words)).reward.terms["length"]
    assert (term.max_tokens, term.of.extract) == (123, "boxed")
