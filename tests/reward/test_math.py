import logging
import math
import threading

import pytest

from experiments.drills import bombs
from experiments.drills.small_run import SLOWLY, SMALL
from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.loop.loop import train
from rl4p.reward.math import Math
from rl4p.runs.build import build

TERM = ("+reward.terms.math._target_=rl4p.reward.math.Math",)


@pytest.fixture(scope="module")
def term():
    live = Math(response_seconds=30.0).open()
    yield live
    live.close()


@pytest.fixture
def graded(make_episodes, make_prompt):
    def graded(term, *responses, answer="1/2"):
        return term(make_episodes(responses, [make_prompt(answer=answer)] * len(responses)))

    return graded


def test_each_response_is_compared_with_its_own_answer(term, make_episodes, make_prompt):
    prompts = [make_prompt(answer=answer) for answer in ("0.5", r"\sqrt{8}", "1,000", "7")]
    responses = [
        *(r"so \boxed{\frac{1}{2}}", r"\boxed{2\sqrt{2}}", r"\boxed{1000}", r"the answer is 7"),
    ]
    grades = term(make_episodes(responses, prompts))
    assert grades == [1.0, 1.0, 1.0, 0.0]
    assert all(type(grade) is float for grade in grades)


def test_the_place_of_the_answer_is_an_option(graded):
    response = r"first \boxed{2}, then <answer>3</answer> #### 4" + "\n" + "or 5"
    for extract, answer in (*(("boxed", "2"), ("answer", "3"), ("hashes", "4"), ("number", "5")),):
        assert graded(Math(extract=extract, workers=1), response, answer=answer) == [1.0]


def test_a_response_over_the_deadline_is_invalid_and_its_neighbours_are_not(graded, caplog):
    term = Math(response_seconds=3.0).open()
    assert graded(term, r"\boxed{0.5}") == [1.0]
    with caplog.at_level(logging.WARNING):
        grades = graded(term, r"\boxed{0.5}", r"\boxed{9^{9^9}+x}", r"\boxed{3}", r"\boxed{1/2}")
    assert "1 of 4 answers could not be compared, the first because it took" in caplog.text
    assert math.isnan(grades.pop(1))
    assert grades == [1.0, 0.0, 1.0]
    assert term.workers.restarts == 1
    term.close()


def test_the_missing_library_is_refused_when_the_run_is_built(monkeypatch):
    monkeypatch.setattr("rl4p.reward.math.find_spec", lambda name: None)
    config = compose(TERM)
    with pytest.raises(
        InputError, match=r"^reward\.terms\.math.*math-verify is not installed.*'rl4p\[math\]'"
    ):
        instantiate(config.reward)


def test_options_are_checked_when_the_configuration_is_read():
    with pytest.raises(InputError, match=r"reward\.terms\.math\.extract"):
        compose([*TERM, "+reward.terms.math.extract=bocks"])
    with pytest.raises(InputError, match=r"reward\.terms\.math\.response_seconds"):
        compose([*TERM, "+reward.terms.math.response_seconds=0"])


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_a_run_goes_on_beside_bombs():
    grades = []
    thread = threading.Thread(target=bombs.graded, args=(grades,))
    words = [*SMALL, SLOWLY, "steps=1000000", "evaluation.every=0"]  # rewards differ
    experiment = build(compose(words))
    steps = train(experiment.loop, experiment.state)
    next(steps)
    thread.start()
    beside = []
    while thread.is_alive():
        beside.append(next(steps).metrics)
    assert [each["right"] for each in grades] == [1.0] * len(bombs.BOMBS)
    assert all(each["grade"] == 0.0 or math.isnan(each["grade"]) for each in grades)
    assert all(each["restarts"] <= 1 for each in grades)
    assert len(beside) >= 10
    assert any(metrics["update/grad_norm"] > 0 for metrics in beside)
