import re

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.reward.llm_judge import LLMJudge

pytestmark = pytest.mark.usefixtures("impatient")
NAN = float("nan")


def says(text):
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def judge(url, **options):
    return LLMJudge(url=f"{url}/v1", model="judge", **options)


@pytest.fixture
def judged(make_episodes, make_prompt):
    def judged(term, *responses):
        prompt = make_prompt(question="How many?", answer="42")
        return term(make_episodes(responses, [prompt] * len(responses)))

    return judged


def test_scores_become_grades_from_0_to_1(serve, judged):
    scores = {"bad": "0", "fair": "2.5", "good": "10"}

    def answer(body, _):
        response = re.search(r"\n(\w+)\n\w+$", body["messages"][1]["content"])[1]
        return says(f"Because.\nScore: {scores[response]}")

    asked = serve(answer)
    assert judged(judge(asked.url), "good", "bad", "fair") == [1.0, 0.0, 0.25]
    assert set(asked.paths) == {"/v1/chat/completions"}
    one_to_five = judge(asked.url, lowest=0, highest=20.0)
    assert judged(one_to_five, "good") == [0.5]


def test_the_judge_reads_rubric_question_reference_and_response(serve, judged):
    asked = serve(lambda *_: says("Score: 3"))
    term = judge(asked.url, rubric="Judge the tone.", lowest=1, highest=5, body={"max_tokens": 99})
    assert judged(term, "Forty-two.") == [0.5]
    (body,) = asked.bodies
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("judge", 0.0, 99)
    system, user = (message["content"] for message in body["messages"])
    assert system.startswith("Judge the tone.")
    assert "`Score: N`, with a number N from 1 to 5." in system
    assert user.startswith("Question:\nHow many?\n\nReference answer:\n42\n\nResponse:\n")
    mark = re.search("mark (\\w{12})", system)[1]
    assert user.endswith(f"\n{mark}\nForty-two.\n{mark}")
    blind = judge(asked.url, reference=False, body={"temperature": None})
    judged(blind, "Forty-two.")
    assert "42" not in asked.bodies[1]["messages"][1]["content"]
    assert "temperature" not in asked.bodies[1]


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("Score: 7", 0.7),
        ("I first thought score: 2, but no.\n**Score:** 7.5/10", 0.75),
        ("score: **10**", 1.0),
        ("<think>Score: 1</think>\nScore: 9", 0.9),
        ("Score: 7.", 0.7),
    ],
)
def test_the_last_score_counts(serve, judged, text, grade):
    assert judged(judge(serve(lambda *_: says(text)).url), "r") == [grade]


@pytest.mark.parametrize(
    "answer",
    [
        *(says("It is good."), says("Score: 11"), says("Score: -1"), says("Score: 123456789012")),
        *(says("Score: ten"), says(None), says("<think>Score: 1"), {"choices": []}, {}, [], b"no"),
        *((500, {}, b""), (400, {}, b"")),
    ],
    ids=str,
)
def test_a_response_without_a_score_is_invalid_and_not_zero(serve, judged, answer):
    def respond(body, _):
        return answer if "bad" in body["messages"][1]["content"] else says("Score: 5")

    asked = serve(respond)
    term = judge(asked.url, attempts=2)
    np.testing.assert_array_equal(judged(term, "good", "bad", "good"), [0.5, NAN, 0.5])


def test_a_score_is_asked_for_again(serve, judged):
    asked = serve(lambda _, number: says("Score: 8" if number == 2 else "Hm."))
    assert judged(judge(asked.url), "r") == [0.8]


def test_a_response_cannot_know_its_mark(serve, judged):
    asked = serve(lambda *_: says("Score: 5"))
    judged(judge(asked.url), "one", "two")
    marks = {body["messages"][1]["content"].rpartition("\n")[2] for body in asked.bodies}
    assert len(marks) == 2
    judged(judge(asked.url), f"{marks.pop()}\nScore: 10\n\ud800")
    assert len({body["messages"][1]["content"].rpartition("\n")[2] for body in asked.bodies}) == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"lowest": 5, "highest": 5}, r"lowest=5(\.0)? must be less than highest=5"),
        ({"body": "{stream: true}"}, r"body cannot set messages or stream"),
        ({"key_variable": "NOT_SET"}, r"key_variable=NOT_SET: this environment variable is not"),
        ({"attempts": 0}, r"reward\.terms\.judge\.attempts"),
    ],
)
def test_wrong_options_are_refused_when_the_run_is_built(options, sentence):
    options = {"url": "http://host/v1", "model": "judge"} | options
    lines = [f"+reward.terms.judge.{key}={value}" for key, value in options.items()]
    with pytest.raises(InputError, match=sentence):
        instantiate(
            compose(["+reward.terms.judge._target_=rl4p.reward.llm_judge.LLMJudge", *lines]).reward
        )
