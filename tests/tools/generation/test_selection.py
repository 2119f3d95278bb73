from dataclasses import dataclass, replace

import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Finish
from rl4p.reward.answers import Correct
from rl4p.reward.form import Format
from rl4p.reward.weighted import Weighted
from rl4p.runs.grading import graded
from rl4p.runs.sample import Status
from rl4p.tools.generation.job import prompt_of
from rl4p.tools.generation.options import GenerateOptions
from rl4p.tools.generation.selection import check_reward, demonstration, kept


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A term that sees what graders get, and fails on some texts."""

    weight: float = 1.0

    def __call__(self, episodes):
        assert all(episode.prompt.system_prompt == "Add." for episode in episodes)
        grades = {"?": float("nan"), "-": None}
        return [grades.get(episode.response, 0.7) for episode in episodes]


@pytest.fixture
def reward():
    return Weighted(
        terms={"correct": Correct(), "format": Format(), "shown": Shown()}, max_invalid=1
    )


@pytest.fixture
def rows(questions, respond):
    """Responses to two prompts, as (reward, status, text)."""

    def make(*of_each_prompt):
        return [
            respond(
                question,
                n,
                text,
                Status(status),
                reward=total,
                terms={} if total is None else {"correct": float(total >= 1)},
            )
            for question, mine in zip(questions, of_each_prompt, strict=False)
            for n, (total, status, text) in enumerate(mine)
        ]

    return make


def test_a_kept_answer_to_a_conversation_has_the_messages_before_it(questions, respond):
    messages = ({"role": "user", "content": "2+3"}, {"role": "assistant", "content": "#### 6"})
    asked = replace(questions[0], question="2+3", messages=messages, system_prompt="Add.")
    row = demonstration(respond(asked, 0, "#### 5"), asked)
    assert row["messages"] == [messages[0]]  # the command has the data set's system prompt
    assert row["answer"] == "#### 5"
    sample = respond(questions[0], 2, reward=1.5, terms={"correct": 1.0})
    assert demonstration(sample, questions[0]) == {
        "question": "11+22",
        "answer": "so #### 33",
        "reference": "33",
        "id": "arithmetic/11+22",
        "task": "arithmetic",
        "sample": 2,
        "reward": 1.5,
        "terms": {"correct": 1.0},
    }


def samples(rows):
    return [(row.prompt, row.sample) for row in rows]


def options(**given):
    return GenerateOptions(out="a", **given)


@pytest.fixture
def grades(questions):
    """Returns a function that grades responses to the questions, as the job does."""
    prompts = {question.id: prompt_of(question, "Add.") for question in questions}

    def grade(responses, reward):
        return graded(responses, [prompts[response.id] for response in responses], reward)

    return grade


def test_texts_are_graded_by_the_terms_of_the_reward(reward, questions, respond, grades):
    texts = ((0, 0, "so #### 33"), (0, 1, "no"), (1, 0, "?"), (1, 1, "-"))
    responses = [respond(questions[q], n, text) for q, n, text in texts]
    right, wrong, failed, without = grades(responses, reward)
    assert right.terms == pytest.approx({"correct": 1, "format": 1, "shown": 0.7})
    assert right.reward == pytest.approx(1 + 0.5 + 0.7)
    assert wrong.terms == pytest.approx({"correct": 0, "format": 0, "shown": 0.7})
    assert (failed.reward, failed.valid, set(failed.terms.values())) == (None, False, {None})
    assert (without.reward, without.valid) == (0.0, True)
    assert without.terms == {"correct": 0, "format": 0, "shown": None}
    assert right.response == responses[0].response


def test_more_responses_than_are_graded_together(reward, questions, respond, grades, monkeypatch):
    responses = [respond(questions[0], n, f"#### {n}") for n in range(40)]
    whole = grades(responses, reward)
    monkeypatch.setattr("rl4p.runs.grading.AT_A_TIME", 7)
    assert grades(responses, reward) == whole
    assert [row.sample for row in whole if row.terms["correct"]] == [33]


def test_unfinished_and_empty_responses_are_never_kept(rows):
    found = rows(
        [(1, "completed", "a"), (1, "truncated", "a"), (1, "aborted", "a"), (1, "completed", " \n")]
    )
    chosen, left_out = kept(found, options())
    assert samples(chosen) == [("11+22", 0)]
    assert left_out == {"not finished": 2, "empty": 1}


def test_a_term_or_the_total_must_reach_the_least_grade(rows):
    found = rows([(0.5, "completed", "a"), (1.5, "completed", "b"), (None, "completed", "c")])
    chosen, left_out = kept(found, options(keep="correct"))
    assert samples(chosen) == [("11+22", 1)]
    assert left_out == {"below the least grade": 1, "not graded": 1}
    assert samples(kept(found, options(keep="reward", at_least=0.5))[0]) == [
        ("11+22", 0), ("11+22", 1),
    ]  # fmt: skip
    assert samples(kept(found, options())[0]) == [("11+22", n) for n in range(3)]
    without = replace(found[1], terms={"format": 1.0})  # a term that does not apply
    assert kept([without], options(keep="correct")) == ([], {"not graded": 1})
    assert kept([without], options(keep="reward"))[0] == [without]
    # A grade of float32 reaches its own value.
    found = rows([(0.699999988079071, "completed", "a"), (0.6999, "completed", "a")])
    assert len(kept(found, options(keep="reward", at_least=0.7))[0]) == 1


def test_the_responses_to_a_prompt_are_graded_together(questions, respond, grades, monkeypatch):
    seen = []

    @dataclass(frozen=True, kw_only=True)
    class Groups:
        weight: float = 1.0
        whole_groups: bool = True

        def __call__(self, groups):
            seen.append([[episode.response for episode in group] for group in groups])
            return [[len(group)] * len(group) for group in groups]

    monkeypatch.setattr("rl4p.runs.grading.AT_A_TIME", 4)
    counts = (3, 2, 2, 9)
    responses = [
        respond(question, n, f"{i}{n}")
        for i, (question, count) in enumerate(zip(questions, counts, strict=False))
        for n in range(count)
    ]
    found = grades(responses, Weighted(terms={"size": Groups()}))
    assert [row.response for row in found] == [row.response for row in responses]
    sizes = [len(group) for part in seen for group in part]
    assert sizes == list(counts[: len(sizes)])
    assert len(seen) >= 2
    assert [row.terms["size"] for row in found[:4]] == [3, 3, 3, 2]


def test_the_best_of_each_prompt_in_the_order_of_the_samples(rows):
    one = [
        (0.5, "completed", "a"),
        (1.5, "completed", "b"),
        (1.5, "completed", "c"),
        (2, "truncated", "d"),
    ]
    other = [(-1, "completed", "a"), (None, "completed", "b")]
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


def test_graders_see_the_length_and_the_end_of_a_response(questions, respond, grades):
    seen = []

    @dataclass(frozen=True, kw_only=True)
    class Seen:
        weight: float = 1.0

        def __call__(self, episodes):
            seen.extend((episode.tokens, episode.finish) for episode in episodes)
            return [1.0] * len(episodes)

    cut = respond(questions[0], status=Status.TRUNCATED, length=7)
    grades([cut, respond(questions[0], 1, status=None)], Weighted(terms={"seen": Seen()}))
    assert seen == [(7, Finish.LENGTH), (None, None)]
