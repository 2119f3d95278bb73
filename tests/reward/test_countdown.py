import math

import pytest

from rl4p.data.countdown import Countdown as Puzzles
from rl4p.reward.countdown import Countdown

GIVEN = {"numbers": [3, 5, 7], "target": 22}


def test_a_right_expression_is_worth_one_and_others_are_worth_nothing(make_prompt, make_episodes):
    responses = ("3*5=15 15+7=22 #### 3*5+7", "#### 3+5+7", "#### 22", "3*5+7", "#### 9**9**9", "")
    prompts = (make_prompt(answer="7+3*5", metadata=GIVEN),) * 6
    assert Countdown()(make_episodes(responses, prompts)) == [1, 0, 0, 0, 0, 0]
    assert Countdown(partial=0.1)(make_episodes(responses, prompts)) == [1, 0.1, 0, 0, 0, 0]


def test_the_answer_is_taken_from_where_it_is_said_to_stand(make_prompt, make_episodes):
    episodes = make_episodes(
        ("<answer> (3*5)+7 = 22 </answer>", r"\boxed{3*5+7}", "#### 3*5+7"),
        (make_prompt(metadata=GIVEN),) * 3,
    )
    assert Countdown(extract="answer")(episodes) == [1, 0, 0]
    assert Countdown(extract=("boxed", "hashes"))(episodes) == [0, 1, 1]
    for rules in ("number", ("hashes", "number")):
        with pytest.raises(ValueError, match="extract=number finds a number"):
            Countdown(extract=rules)


def test_each_response_is_graded_by_its_own_question(make_prompt, make_episodes):
    prompts = (make_prompt(answer="1+2"), make_prompt(answer="2+2"), make_prompt(answer="none"))
    grades = Countdown()(make_episodes(("#### 2+1",) * 3, prompts))
    assert grades[:2] == [1, 0]
    assert math.isnan(grades[2])  # there is nothing to compare it with


def test_the_answers_of_the_data_set_are_right(make_prompt, make_episodes):
    rows = Puzzles(operators="+-*/", train_size=200).train()
    for fields in ({}, {"metadata": {}}):
        prompts = [make_prompt(**vars(row) | fields) for row in rows]
        assert set(Countdown()(make_episodes([row.solution for row in rows], prompts))) == {1.0}
    others = [row.solution for row in (*rows[1:], rows[0])]
    assert sum(Countdown()(make_episodes(others, prompts))) == 0
