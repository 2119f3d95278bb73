import math
import re

import numpy as np
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


FORMS = [
    *({"numbers": [3, 5, 7], "target": target} for target in (22.0, "22", "22.0", np.int64(22))),
    *({"nums": nums, "target": 22} for nums in ([7, 5, 3], (3, 5, 7), np.array([3, 5, 7]))),
    *({"numbers": text, "target": "22"} for text in ("[3, 5, 7]", "3 5 7", "3,5,7")),
    {"numbers": [3.0, "5", 7], "target": np.float32(22)},
    {"numbers": [3, 5, 7], "nums": [7, 3, 5], "target": 22},
    {"numbers": None, "nums": [3, 5, 7], "target": 22},
]
UNREADABLE = [
    ({"numbers": [3, 5, 7], "target": "about 22"}, "'about 22' is no number"),
    ({"numbers": [3, 5, 7], "target": float("nan")}, "nan is no number"),
    ({"numbers": [3, 5, 7], "target": True}, "True is no number"),
    ({"numbers": [3, 5, 7], "target": [22]}, r"\[22\] is no number"),
    ({"numbers": [3, None, 7], "target": 22}, "None is no number"),
    ({"numbers": [3, 5.5, 7], "target": 22}, "5.5 is no whole number"),
    ({"numbers": "3 and 5", "target": 22}, "'and' is no number"),
    ({"numbers": 357, "target": 22}, "357 is no list of numbers"),
    ({"numbers": [], "target": 22}, r"\[\] is no list of numbers"),
    ({"numbers": [3, 5, 7], "nums": [3, 5], "target": 22}, "there are other numbers"),
    ({"numbers": [3, 5, 7]}, "has no target, and the answer is no expression"),
    ({"target": 22}, "has no numbers, and the answer is no expression"),
    ({}, "has no numbers, and the answer is no expression"),
]


@pytest.mark.parametrize("metadata", FORMS, ids=repr)
def test_metadata_with_one_meaning_is_read(make_prompt, make_episodes, metadata):
    prompts = (make_prompt(answer="22", metadata=metadata),) * 3
    assert Countdown()(make_episodes(("#### 3*5+7", "#### 22", "#### 3+5+7"), prompts)) == [1, 0, 0]


@pytest.mark.parametrize(("metadata", "reason"), UNREADABLE, ids=repr)
def test_one_row_with_unreadable_metadata_is_invalid(
    make_prompt, make_episodes, metadata, reason, caplog
):
    prompts = (make_prompt(answer="22", metadata=metadata), make_prompt(metadata=GIVEN))
    grades = Countdown()(make_episodes(("#### 22", "#### 3*5+7"), prompts))
    assert math.isnan(grades[0])
    assert grades[1] == 1
    assert re.search(f"1 of 2 responses could not be graded, .* row a: .*{reason}", caplog.text)


def test_a_worked_answer_completes_the_metadata(make_prompt, make_episodes):
    def grade(**fields):
        return Countdown()(make_episodes(("#### 3*5+7",), (make_prompt(**fields),)))[0]

    assert grade(answer="7+3*5", metadata={"target": "22"}) == 1
    assert grade(answer="7+3*5", metadata={"numbers": [3, 5, 7]}) == 1
    assert math.isnan(grade(answer="7+3*5", metadata={"target": 23}))
    assert math.isnan(grade(answer="7+3*5", metadata={"numbers": [3, 5, 8]}))


def test_the_answers_of_the_data_set_are_right(make_prompt, make_episodes):
    rows = Puzzles(operators="+-*/", train_size=200).train()
    for fields in ({}, {"metadata": {}}):
        prompts = [make_prompt(**vars(row) | fields) for row in rows]
        assert set(Countdown()(make_episodes([row.solution for row in rows], prompts))) == {1.0}
    others = [row.solution for row in (*rows[1:], rows[0])]
    assert sum(Countdown()(make_episodes(others, prompts))) == 0
