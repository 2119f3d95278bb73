from math import isnan

import pytest

from rl4p.reward.crossword import Crossword


@pytest.fixture
def grade(make_prompt, make_episodes):
    def grade(response, answer="New York", **options):
        prompt = make_prompt(answer=answer)
        (given,) = Crossword(**options)(make_episodes([response], [prompt]))
        return given

    return grade


@pytest.mark.parametrize(
    ("response", "exact", "shaped"),
    [
        ("<think>hm</think><answer>New York</answer>", 1, 1.0),
        ("<answer>NEW-YORK!</answer>", 1, 1.0),
        ("new york", 1, 1.0),
        ("<think>New York?</think><answer>Boston</answer>", 0, 0.02 + 0.25),
        ("<answer>It is New York</answer>", 0, 0.01 + 0.25),
        ("<answer>New Yorkers</answer>", 0, 0.01),
        ("<answer>New York", 0, 0.005 + 0.25),  # cut
        ("<think></think>", 0, 0.01),
        ("Boston", 0, 0.0),
        ("", 0, 0.0),
    ],
)
def test_an_exact_and_a_shaped_grade(grade, response, exact, shaped):
    assert grade(response) == exact
    assert grade(response, shaped=True) == pytest.approx(shaped, abs=1e-12)
    assert (grade(response, shaped=True) == 1) == (exact == 1)


def test_accents_signs_and_digits_do_not_count(grade):
    assert grade("<answer>RANDDE</answer>", answer="R&D É-1") == 1
    assert grade("<answer>r & d é</answer>", answer="R&D É-1") == 1
    assert grade("<answer>RDE</answer>", answer="R&D É-1") == 0


def test_a_tag_is_counted_once_and_is_no_word_of_the_answer(grade):
    assert grade("<answer><answer></answer>", answer="ANSWER", shaped=True) == 0.01
    assert grade("<answer>answer</answer>", answer="ANSWER", shaped=True) == 1
    # Tags divide words: they never join two halves.
    assert grade("New<think>York", shaped=True) == pytest.approx(0.005 + 0.25)


def test_a_reference_without_letters_makes_the_sample_invalid(grade):
    assert isnan(grade("<answer>42</answer>", answer="42"))
    assert isnan(grade("", answer="42", shaped=True))


def test_each_response_is_compared_with_its_own_prompt(make_prompt, make_episodes):
    prompts = [make_prompt(answer="Oslo"), make_prompt(answer="Rome")]
    assert Crossword()(make_episodes(["Rome", "Rome"], prompts)) == [0, 1]


def test_an_answer_weighs_one_by_default():
    assert Crossword().weight == 1.0
    assert Crossword(weight=0.5).weight == 0.5
