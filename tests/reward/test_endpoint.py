"""Tests the requests to a grading server, and the terms that read its answers."""

import math
import re
import threading
import time
from collections import Counter

import numpy as np
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.base.http import InvalidResponseError
from rl4p.configuration import compose, instantiate
from rl4p.reward.endpoint import (
    MOST_FAILURES,
    Endpoint,
    HttpScorer,
    LLMJudge,
    NoAnswer,
    pairs_of,
)
from rl4p.reward.weighted import Weighted

pytestmark = pytest.mark.usefixtures("impatient")


def endpoint(url, **options):
    defaults = {"key_variable": None, "timeout_seconds": 20.0, "attempts": 3, "concurrency": 4}
    return Endpoint(url=url, **defaults | options)


def send(url, *numbers, **options):
    return endpoint(url, **options).send([{"n": n} for n in numbers], lambda _, answer: answer)


def test_answers_come_in_the_order_of_the_requests(serve):
    def answer(body, number):
        time.sleep(0.01 * (body["n"] % 3))
        return body["n"] * 2

    asked = serve(answer)
    assert send(asked.url, *range(20)) == [2 * n for n in range(20)]
    assert 1 < asked.together <= 4
    assert send(asked.url) == []


def test_a_request_fails_after_all_attempts_and_its_neighbours_do_not(serve):
    asked = serve(lambda body, _: (500, {}, b"no") if body["n"] == 2 else body["n"])
    assert send(asked.url, 1, 2, 3) == [1, NoAnswer(reason="HTTP 500 no"), 3]
    assert [body["n"] for body in asked.bodies].count(2) == 3


def test_a_refused_request_is_not_repeated(serve):
    asked = serve(lambda body, _: (400, {}, b"too long") if body["n"] == 2 else body["n"])
    assert send(asked.url, 1, 2, 3) == [1, NoAnswer(reason="HTTP 400 too long"), 3]
    assert len(asked.bodies) == 3


def test_an_answer_that_cannot_be_used_is_asked_for_again(serve):
    def read(index, answer):
        if answer != "good":
            raise InvalidResponseError(f"{answer} at {index}")
        return answer

    asked = serve(lambda _, number: {1: b"{", 2: "bad"}.get(number, "good"))
    assert endpoint(asked.url).send([{}], read) == ["good"]
    asked = serve(lambda *_: "bad")
    assert endpoint(asked.url).send([{}], read) == [NoAnswer(reason="bad at 0")]


@pytest.mark.slow
def test_a_server_that_never_answers_costs_its_deadline(serve):
    over = threading.Event()

    def answer(body, number):
        if body["n"] == 2:
            over.wait(30)
        return body["n"]

    asked = serve(answer)
    results = send(asked.url, 1, 2, 3, timeout_seconds=2.0, attempts=2)
    over.set()
    assert results == [1, NoAnswer(reason="no response within 2 seconds"), 3]


def test_a_server_that_is_down_is_soon_asked_no_more(serve):
    asked = serve(lambda *_: (500, {}, b"down"))
    results = send(asked.url, *range(100), attempts=2, concurrency=1)
    assert len(asked.bodies) == 2 * MOST_FAILURES
    reasons = [each.reason for each in results]
    assert reasons[:MOST_FAILURES] == ["HTTP 500 down"] * MOST_FAILURES
    assert set(reasons[MOST_FAILURES:]) == {"it was not sent, since 8 others in a row had failed"}
    (refused,) = send("http://127.0.0.1:9", 1)
    assert "cannot be reached" in refused.reason


@pytest.mark.parametrize("status", [307, 401, 403, 404])
def test_a_wrong_address_or_key_stops_the_run(serve, status):
    asked = serve(lambda *_: (status, {}, b"wrong"))
    with pytest.raises(RunError, match=rf"^{asked.url}: HTTP {status} wrong \(.*\)\.$"):
        send(asked.url, *range(20))
    assert len(asked.bodies) <= 4


def test_the_key_is_sent_and_never_shown(serve, monkeypatch):
    monkeypatch.setenv("GRADER_KEY", "sk-123")
    asked = serve(lambda *_: (400, {}, b"no such key: sk-123"))
    (result,) = send(asked.url, 1, key_variable="GRADER_KEY")
    assert asked.headers[0]["Authorization"] == "Bearer sk-123"
    assert result == NoAnswer(reason="HTTP 400 no such key: [key]")
    assert "sk-123" not in repr(endpoint(asked.url, key_variable="GRADER_KEY"))
    send(asked.url, 1)
    assert "Authorization" not in asked.headers[1]


def test_it_works_in_any_thread(serve):
    asked, results = serve(lambda body, _: body["n"]), []
    thread = threading.Thread(target=lambda: results.extend(send(asked.url, 1, 2)))
    thread.start()
    thread.join()
    assert results == [1, 2]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"url": "localhost:8000"}, r"^url=localhost:8000 is not an address: write http://"),
        ({"url": "http://me:secret@host"}, r"^url contains a user name, a password or a token"),
        ({"key_variable": "sk-123"}, r"^key_variable is not the name of an environment variable"),
        ({"key_variable": "NOT_SET"}, r"^key_variable=NOT_SET: this environment variable is not"),
    ],
)
def test_wrong_options_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence) as caught:
        endpoint(**{"url": "http://host"} | options)
    assert "secret" not in str(caught.value)


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
    grades = HttpScorer(url=asked.url)(episodes)
    assert grades[0] is None
    assert all(math.isnan(grade) for grade in grades[1:4])
    assert grades[4] == -2.5


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
    term = "+reward.terms.mine._target_=rl4p.reward.endpoint.HttpScorer"
    config = compose([term, "+reward.terms.mine.url=localhost"])
    with pytest.raises(InputError, match=r"^reward\.terms\.mine.*url=localhost is not an address"):
        instantiate(config.reward)


def says(text):
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def judge(url, **options):
    return LLMJudge(url=f"{url}/v1", model="judge", **options)


@pytest.fixture
def judged(make_episodes, make_prompt):
    def judged(term, *responses):
        prompt = make_prompt(question="How many?", answer="42")
        return term.open()(make_episodes(responses, [prompt] * len(responses)))

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
    assert "`Score: N`, with a number N from 1 to 5, a higher one for a better resp" in system
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
        ({"compare": "all"}, r"reward\.terms\.judge\.compare"),
        ({"compare": "pairs", "highest": 5}, r"compare=pairs has no scores: leave lowest and"),
        ({"max_pairs": 8}, r"max_pairs=8 has no effect without pairs: set compare=pairs, or"),
    ],
)
def test_wrong_options_are_refused_when_the_run_is_built(options, sentence):
    options = {"url": "http://host/v1", "model": "judge"} | options
    lines = [f"+reward.terms.judge.{key}={value}" for key, value in options.items()]
    with pytest.raises(InputError, match=sentence):
        instantiate(
            compose(["+reward.terms.judge._target_=rl4p.reward.endpoint.LLMJudge", *lines]).reward
        )


def two_responses(body):
    """Returns the two responses in a request, in their order."""
    text = body["messages"][1]["content"]
    return re.findall(r"Response \d:\n\w+\n(.*?)\n\w{12}", text, re.DOTALL)


def longer(body, _):
    """A judge that prefers the longer response."""
    first, second = map(len, two_responses(body))
    return says(f"So.\nWinner: {'tie' if first == second else 1 if first > second else 2}")


@pytest.fixture
def compared(make_episodes, make_prompt):
    def compared(live, *groups):
        prompts = [make_prompt(id=f"p{n}", answer="42") for n in range(len(groups))]
        batch = [
            make_episodes(group, [prompt] * len(group))
            for group, prompt in zip(groups, prompts, strict=True)
        ]
        return live(batch)

    return compared


def test_the_grade_of_a_pair_judge_is_the_win_rate_with_ties_as_halves(serve, compared):
    asked = serve(longer)
    live = judge(asked.url, compare="pairs").open()
    assert compared(live, ["aaa", "b", "cc", "d"], ["x", "yy"]) == [
        [1.0, 0.5 / 3, 2 / 3, 0.5 / 3],
        [0.0, 1.0],
    ]
    orders = Counter(tuple(two_responses(body)) for body in asked.bodies)
    texts = ("aaa", "b", "cc", "d")
    both = {(a, b) for a in texts for b in texts if a != b} | {("x", "yy"), ("yy", "x")}
    assert orders == dict.fromkeys(both, 1)
    assert live.metrics() == {"contradictions": 0.0}


def test_a_pair_judge_reads_both_responses_between_a_mark(serve, compared):
    asked = serve(longer)
    compared(judge(asked.url, compare="pairs", rubric="Judge the tone.").open(), ["one", "three"])
    system, user = (message["content"] for message in asked.bodies[0]["messages"])
    assert system.startswith(
        "Judge the tone.\n\nEach response stands between two lines of the mark"
    )
    assert system.endswith(
        "`Winner: 1` or `Winner: 2` for the better response, or `Winner: tie` if neither is better."
    )
    mark = re.search("mark (\\w{12})", system)[1]
    one, other = two_responses(asked.bodies[0])
    assert user.endswith(
        f"Reference answer:\n42\n\nResponse 1:\n{mark}\n{one}\n{mark}\n\n"
        f"Response 2:\n{mark}\n{other}\n{mark}"
    )


def test_a_judge_that_contradicts_itself_gives_a_tie_and_is_counted(serve, compared):
    """It prefers the first place, except that it knows that z is worse."""

    def answer(body, _):
        return says("Winner: 2" if two_responses(body)[0] == "z" else "Winner: 1")

    live = judge(serve(answer).url, compare="pairs").open()
    assert compared(live, ["a", "b", "z"]) == [[0.75, 0.75, 0.0]]
    assert live.metrics() == {"contradictions": 1 / 3}
    assert live.metrics() == {}  # counted anew
    half = serve(lambda body, _: says(f"Winner: {['tie', 1][two_responses(body)[0] == 'a']}"))
    live = judge(half.url, compare="pairs").open()
    assert compared(live, ["a", "b"]) == [[0.5, 0.5]]
    assert live.metrics() == {"contradictions": 1.0}


def test_equal_texts_tie_without_a_request(serve, compared):
    asked = serve(longer)
    live = judge(asked.url, compare="pairs").open()
    assert compared(live, ["aa", "aa", "b"]) == [[0.75, 0.75, 0.0]]
    assert len(asked.bodies) == 4
    assert compared(live, ["c", "c"]) == [[0.5, 0.5]]
    live.metrics()
    compared(live, ["c", "c"])
    assert live.metrics() == {}  # no pair was judged


@pytest.mark.parametrize(
    "bad", [says("Both are good."), says("Winner: 1 or 2"), says("Winner: 12"), (400, {}, b"no")]
)
def test_a_pair_without_an_answer_is_left_out(serve, compared, caplog, bad):
    """The request with b before c fails; b and c still have their pair with a."""
    asked = serve(lambda body, n: bad if two_responses(body) == ["b", "ccc"] else longer(body, n))
    live = judge(asked.url, compare="pairs", attempts=1).open()
    assert compared(live, ["aa", "b", "ccc"]) == [[0.5, 0.0, 1.0]]
    assert live.metrics() == {"contradictions": 0.0}
    assert not caplog.text


def test_a_response_without_a_pair_is_invalid_and_a_lone_one_has_no_grade(serve, compared, caplog):
    asked = serve(lambda body, n: says("?") if "bad" in two_responses(body) else longer(body, n))
    live = judge(asked.url, compare="pairs", attempts=1).open()
    ((*good, bad), (lone,)) = compared(live, ["aa", "b", "bad"], ["c"])
    assert good == [1.0, 0.0]
    assert math.isnan(bad)
    assert lone is None
    assert (
        "1 of 4 responses could not be compared, the first because an answer without `Winner"
        in (caplog.text)
    )


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("Winner: 1", 1.0),
        ("winner: 2, I thought, but no.\n**Winner:** 1", 1.0),
        ("Winner: Response 1", 1.0),
        ("<think>Winner: 2</think>\nWinner: **1**.", 1.0),
        ("Winner: TIE", 0.5),
    ],
)
def test_the_last_winner_counts(serve, compared, text, grade):
    swap = {"1": "2", "2": "1"}
    swapped = re.sub(r"\b[12]\b", lambda match: swap[match[0]], text)
    asked = serve(lambda body, _: says(text if two_responses(body)[0] == "a" else swapped))
    live = judge(asked.url, compare="pairs").open()
    assert compared(live, ["a", "b"]) == [[grade, 1 - grade]]
    assert live.metrics() == {"contradictions": 0.0}


@pytest.mark.parametrize("count", [2, 3, 7, 8, 16, 33])
def test_pairs_are_bounded_balanced_and_drawn_by_the_prompt(make_episodes, make_prompt, count):
    group = make_episodes(["r"] * count, [make_prompt(id="a")] * count)
    other = make_episodes(["r"] * count, [make_prompt(id="b")] * count)
    all_pairs = count * (count - 1) // 2
    for most in {(count + 1) // 2, count, 2 * count + 1, all_pairs, all_pairs + 9}:
        if most < (count + 1) // 2:
            continue
        pairs = pairs_of(group, most)
        assert len(pairs) == min(most, all_pairs)
        assert len({frozenset(pair) for pair in pairs}) == len(pairs)
        met = Counter(row for pair in pairs for row in pair)
        assert len(met) == count
        assert max(met.values()) - min(met.values()) <= 1
        assert pairs == pairs_of(group, most)
    if count > 3:
        assert pairs_of(group, count) != pairs_of(other, count)


def test_too_few_pairs_for_a_group_are_refused(serve, compared):
    live = judge(serve(longer).url, compare="pairs", max_pairs=2).open()
    assert len(compared(live, ["a", "b", "c", "d"])[0]) == 4
    with pytest.raises(
        InputError,
        match=r"^max_pairs=2 leaves some of the 5 responses to a prompt without a pair: write "
        r"max_pairs=3 or more\.$",
    ):
        compared(live, ["a", "b", "c", "d", "e"])


def test_a_pair_judge_in_a_reward_compares_the_groups_of_a_batch(serve, make_episodes, make_prompt):
    """The samples of a prompt are compared, wherever they are in the batch."""
    asked = serve(longer)
    reward = Weighted(terms={"judge": judge(asked.url, compare="pairs", weight=2.0)})
    prompts = [make_prompt(id=name) for name in "abab"]
    rewards = reward.grade_texts(make_episodes(["x", "yyy", "xx", "y"], prompts))
    np.testing.assert_array_equal(rewards.total_B, [0.0, 2.0, 2.0, 0.0])
    assert len(asked.bodies) == 4
    assert reward.metrics() == {"reward/judge_contradictions": 0.0}
    assert reward.metrics() == {}
    reward.close()
