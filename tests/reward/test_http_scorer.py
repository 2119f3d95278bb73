import math

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose, instantiate
from rl4p.reward.http_scorer import HttpScorer

pytestmark = pytest.mark.usefixtures("impatient")
NAN = float("nan")


@pytest.fixture
def episodes(make_episodes, make_prompt):
    prompts = [
        make_prompt(question=f"q{n}", answer=str(n), task="sums", metadata={"level": n})
        for n in range(5)
    ]
    return make_episodes([f"r{n}" for n in range(5)], prompts)


def test_each_row_gets_its_own_score(serve, episodes):
    asked = serve(lambda body, _: {"scores": [row["metadata"]["level"] for row in body["rows"]]})
    term = HttpScorer(url=f"{asked.url}/score", batch_size=2)
    assert term(episodes) == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert sorted(len(body["rows"]) for body in asked.bodies) == [1, 2, 2]
    assert set(asked.paths) == {"/score"}
    rows = [row for body in asked.bodies for row in body["rows"]]
    assert min(rows, key=lambda row: row["question"]) == {
        "question": "q0",
        "answer": "0",
        "response": "r0",
        "task": "sums",
        "metadata": {"level": 0},
    }


def test_null_does_not_apply_and_what_is_no_number_is_invalid(serve, episodes):
    scores = [None, "1", True, 10**400, -2.5]
    asked = serve(lambda *_: {"scores": scores})
    found = HttpScorer(url=asked.url)(episodes)
    assert found[0] is None
    assert all(math.isnan(score) for score in found[1:4])
    assert found[4] == -2.5


@pytest.mark.parametrize(
    "answer", [[1] * 5, {"scores": [1] * 4}, {"scores": 1}, {}, b"not JSON", (500, {}, b"")]
)
def test_rows_of_a_request_that_fails_are_invalid_and_no_others(serve, episodes, answer):
    def respond(body, _):
        rows = body["rows"]
        return answer if rows[0]["question"] == "q2" else {"scores": [1] * len(rows)}

    asked = serve(respond)
    term = HttpScorer(url=asked.url, batch_size=2, attempts=2)
    np.testing.assert_array_equal(term(episodes), [1, 1, NAN, NAN, 1])
    assert len(asked.bodies) == 4


def test_a_row_with_metadata_that_json_does_not_know_is_invalid(
    serve, make_episodes, make_prompt, caplog
):
    asked = serve(lambda *_: {"scores": [1]})
    prompts = [make_prompt(metadata={"board": np.zeros(2)}), make_prompt(metadata={"board": [0]})]
    grades = HttpScorer(url=asked.url)(make_episodes(["r", "s"], prompts))
    np.testing.assert_array_equal(grades, [NAN, 1])
    assert [row["response"] for row in asked.bodies[0]["rows"]] == ["s"]
    assert "1 of 2 responses could not be sent, the first because of the metadata" in caplog.text


def test_a_wrong_address_is_refused_when_the_run_is_built():
    term = "+reward.terms.mine._target_=rl4p.reward.http_scorer.HttpScorer"
    config = compose([term, "+reward.terms.mine.url=localhost"])
    with pytest.raises(InputError, match=r"^reward\.terms\.mine.*url=localhost is not an address"):
        instantiate(config.reward)
