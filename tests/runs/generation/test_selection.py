from dataclasses import dataclass

import pytest

from rl4p.errors import InputError
from rl4p.reward.correct import Correct
from rl4p.reward.format import Format
from rl4p.reward.weighted import Weighted
from rl4p.runs.generation import selection
from rl4p.runs.generation.options import Options
from rl4p.runs.generation.selection import Graded, check_reward, graded, kept
from rl4p.types import Finish


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A term that sees what graders get, and fails on some texts."""

    weight: float = 1.0

    def __call__(self, episodes):
        assert all(episode.prompt.system_prompt == "Add." for episode in episodes)
        return [None if "?" in episode.response else 0.7 for episode in episodes]


@pytest.fixture
def reward():
    return Weighted(
        terms={"correct": Correct(), "format": Format(), "shown": Shown()}, max_invalid=1
    )


@pytest.fixture
def rows(questions, respond):
    """Responses to two prompts, as (reward, finish, text)."""

    def make(*of_each_prompt):
        return [
            Graded(
                response=respond(question, n, text, finish),
                reward=total,
                terms={} if total is None else {"correct": float(total >= 1)},
            )
            for question, mine in zip(questions, of_each_prompt, strict=False)
            for n, (total, finish, text) in enumerate(mine)
        ]

    return make


def samples(rows):
    return [(row.response.question.question, row.response.sample) for row in rows]


def options(**given):
    return Options(out="a", **given)


def test_texts_are_graded_by_the_terms_of_the_reward(reward, questions, respond):
    responses = [
        respond(questions[0]),
        respond(questions[0], 1, "no"),
        respond(questions[1], 0, "?"),
    ]
    right, wrong, failed = graded(responses, reward, "Add.")
    assert right.terms == pytest.approx({"correct": 1, "format": 1, "shown": 0.7})
    assert right.reward == pytest.approx(1 + 0.5 + 0.7)
    assert wrong.terms == pytest.approx({"correct": 0, "format": 0, "shown": 0.7})
    assert (failed.reward, failed.terms) == (None, {})
    assert graded(responses, None, None)[0] == Graded(response=responses[0], terms={})


def test_more_responses_than_are_graded_together(reward, questions, respond, monkeypatch):
    responses = [respond(questions[0], n, f"#### {n}") for n in range(40)]
    whole = graded(responses, reward, "Add.")
    monkeypatch.setattr("rl4p.runs.generation.selection.AT_A_TIME", 7)
    assert graded(responses, reward, "Add.") == whole
    assert [row.response.sample for row in whole if row.terms["correct"]] == [33]


def test_the_lines(questions, respond):
    row = Graded(response=respond(questions[0], 2), reward=1.5, terms={"correct": 1.0})
    assert row.demonstration == {
        "question": "11+22",
        "answer": "so #### 33",
        "reference": "33",
        "id": "arithmetic/11+22",
        "task": "arithmetic",
        "sample": 2,
        "reward": 1.5,
        "terms": {"correct": 1.0},
    }
    assert row.row["response"] == "so #### 33"
    assert row.row["terms"] == {"correct": 1.0}


def test_unfinished_and_empty_responses_are_never_kept(rows):
    found = rows([(1, "stop", "a"), (1, "length", "a"), (1, "abort", "a"), (1, "stop", " \n")])
    chosen, left_out = kept(found, options())
    assert samples(chosen) == [("11+22", 0)]
    assert left_out == {"not finished": 2, "empty": 1}


def test_a_term_or_the_total_must_reach_the_least_grade(rows):
    found = rows([(0.5, "stop", "a"), (1.5, "stop", "b"), (None, "stop", "c")])
    chosen, left_out = kept(found, options(keep="correct"))
    assert samples(chosen) == [("11+22", 1)]
    assert left_out == {"below the least grade": 1, "not graded": 1}
    assert samples(kept(found, options(keep="reward", at_least=0.5))[0]) == [
        ("11+22", 0), ("11+22", 1),
    ]  # fmt: skip
    assert samples(kept(found, options())[0]) == [("11+22", n) for n in range(3)]


def test_a_grade_of_float32_reaches_its_own_value(rows):
    found = rows([(0.699999988079071, "stop", "a"), (0.6999, "stop", "a")])
    assert len(kept(found, options(keep="reward", at_least=0.7))[0]) == 1


def test_the_best_of_each_prompt_in_the_order_of_the_samples(rows):
    one = [(0.5, "stop", "a"), (1.5, "stop", "b"), (1.5, "stop", "c"), (2, "length", "d")]
    other = [(-1, "stop", "a"), (None, "stop", "b")]
    chosen, left_out = kept(rows(one, other), options(best=1))
    assert samples(chosen) == [("11+22", 1), ("15+26", 0)]
    assert left_out == {"beyond the best": 2, "not finished": 1, "not graded": 1}
    assert samples(kept(rows(one, other), options(best=2))[0]) == [
        ("11+22", 1), ("11+22", 2), ("15+26", 0),
    ]  # fmt: skip
    assert samples(kept(rows(one, other), options(best=2, keep="correct"))[0]) == [
        ("11+22", 1), ("11+22", 2),
    ]  # fmt: skip


def test_a_reward_that_cannot_grade_texts_is_refused(reward):
    check_reward(reward, options(keep="format"))
    check_reward(reward, options(keep="reward"))
    with pytest.raises(InputError, match=r"keep=corect is not a term.*correct, format, shown"):
        check_reward(reward, options(keep="corect"))
    with pytest.raises(InputError, match="object cannot grade texts alone: choose reward=weighted"):
        check_reward(object(), options())


def test_graders_see_the_length_and_the_end_of_a_response(questions, respond):
    episode = selection.episode(respond(questions[0], finish="length", length=7), "Add.")
    assert (episode.tokens, episode.finish) == (7, Finish.LENGTH)
    assert selection.episode(respond(questions[0]), None).tokens is None
