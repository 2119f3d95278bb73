"""Tests the terms for format, tags, length and repetitions."""

import math
import threading
from dataclasses import dataclass, replace

import pytest

from rl4p.base.types import Episode, Finish, Prompt
from rl4p.configuration import compose
from rl4p.reward.answers import Correct
from rl4p.reward.form import CosineLength, Format, Overlong, Repetition, Tags
from rl4p.runs.build import build_phases


def grades(term, *responses):
    prompt = Prompt(id="a", question="", answer="", task="t", tokens=())
    return term([Episode(prompt=prompt, response=response) for response in responses])


@pytest.mark.parametrize(
    ("response", "grade"),
    [
        ("7+5=12 #### 12", 1),
        ("several\nlines\n#### -1,200.5", 1),
        ("7+5=12 #### 12 ", 0),  # text after the answer
        ("#### 12", 0),  # no working before the answer
        ("7+5=12", 0),
        ("7+5=12 ####", 0),
        ("", 0),
    ],
)
def test_working_then_the_answer_at_the_very_end(response, grade):
    assert grades(Format(), response) == [grade]


def test_a_pattern_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"pattern 'a\(' is not a valid regex: "):
        Format(pattern="a(")


def test_the_pattern_is_of_the_whole_response():
    assert grades(Format(pattern="a+"), "aa", "ab", "ba", "") == [1, 0, 0, 0]


def test_the_form_weighs_half_by_default():
    assert Format().weight == 0.5
    assert Format(weight=2.0).weight == 2.0


def test_a_pattern_without_end_makes_the_sample_invalid_and_keeps_no_other_thread(monkeypatch):
    """Python's own module re would try some 10^20 ways, and let no other thread run meanwhile."""
    monkeypatch.setattr("rl4p.reward.form.SECONDS", 0.2)
    ended, turns = threading.Event(), []

    def other():
        while not ended.wait(0.001):
            turns.append(1)

    thread = threading.Thread(target=other)
    thread.start()
    first_to_last = grades(Format(pattern="(a|aa)+b"), "aab", "a" * 100, "c")
    ended.set()
    thread.join()
    assert (first_to_last[0], first_to_last[2]) == (1, 0)
    assert math.isnan(first_to_last[1])
    assert len(turns) > 3


@pytest.mark.parametrize(
    ("pattern", "before", "grade"),
    [
        (r"<think>.*</think>.*", "<|assistant|><think>\n", 1),
        (r"<think>.*</think>.*", "<|assistant|>", 0),
        (r"<think>.*</think>.*", None, 0),
        (r".*</think>.*", "<|assistant|><think>\n", 1),  # a pattern for the response alone
        (r"<.*</a>.*", "<|assistant|><think>\n", 0),  # the tag of the template has no part in it
        (r"\s*<think>.*4</think>", "<|assistant|><think>\n", 0),
    ],
)
def test_the_tag_that_the_template_wrote_may_be_required(
    make_prompt, make_episodes, pattern, before, grade
):
    prompts = (make_prompt(generation_prompt=before),)
    assert Format(pattern=pattern)(make_episodes(("2+2</think>4 </a>",), prompts)) == [grade]


@pytest.mark.parametrize(
    ("response", "share"),
    [
        ("<think>a</think><answer>b</answer>", 1),
        ("x <think>\n</think> y <answer></answer> z", 1),
        ("<think>a</think>", 0.5),
        ("<think>a", 0.25),
        ("", 0),
        ("<answer>b</answer><think>a</think>", 0.5),
        ("</think><think><answer></answer>", 0.75),
        ("</answer><answer></think><think>", 0.25),
        ("<think>a</think><answer>b</answer><answer>c</answer>", 0.5),
        ("<think><think>a</think><answer>b</answer>", 0.75),
        ("<THINK>a</THINK>", 0),
    ],
)
def test_tags_count_once_and_in_order(make_episodes, response, share):
    assert Tags()(make_episodes((response,))) == [share]


def test_tags_of_the_chat_template_count(make_prompt, make_episodes):
    def grade(response, before):
        prompts = (make_prompt(generation_prompt=before),)
        return Tags()(make_episodes((response,), prompts))[0]

    response = "2 and 2</think><answer>4</answer>"
    assert grade(response, "<|assistant|><think>\n") == 1
    assert grade(response, None) == 1  # not known: the response shows it
    assert grade(response, "<|assistant|>") == 0.75
    assert grade(f"<think>{response}", "<|assistant|><think>\n") == 0.75  # twice
    assert grade("<answer>4</answer>", "<think>\n\n</think>\n\n") == 1
    assert grade("2 and 2", "<|assistant|><think>\n") == 0.25


@pytest.mark.parametrize(
    ("tags", "response", "share"),
    [
        (("==",), "==", 1),
        (("==",), "===", 0),  # at two places
        (("aba",), "ababa", 0),
        (("<a><a>",), "<a><a><a>", 0),
        (("ab", "bc"), "abc", 1),  # two tags that overlap
        (("bc", "ab"), "abc", 0.5),
        (("aa",), "aa aa", 0),
        (("aa",), "a" * 99, 0),
    ],
)
def test_overlapping_tags_occur_twice(make_episodes, tags, response, share):
    assert Tags(tags=tags)(make_episodes((response,))) == [share]


def test_other_tags_can_be_required(make_episodes):
    term = Tags(tags=("<a>", "</a>", "<b>"))
    assert term(make_episodes(("<a> <b> </a>", "<a></a><b>"))) == pytest.approx([2 / 3, 1])


def test_long_responses_are_read_at_once(make_episodes):
    assert Tags()(make_episodes(("<think>" * 40_000, "<" * 240_000))) == [0, 0]


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        ((), "different texts, at least one"),
        (("<a>", ""), "different texts, at least one"),
        (("<a>", "<a>"), "different texts, at least one"),
        (("a", "<a>"), "has a, which is also part of <a>"),
    ],
)
def test_tags_that_cannot_be_counted_are_refused(tags, message):
    with pytest.raises(ValueError, match=message):
        Tags(tags=tags)


@pytest.fixture
def with_lengths(make_episodes):
    def with_lengths(*counts):
        episodes = make_episodes(("text",) * len(counts))
        return [replace(each, tokens=n) for each, n in zip(episodes, counts, strict=True)]

    return with_lengths


def test_the_penalty_grows_along_the_ramp(with_lengths):
    """The values of the paper's sizes: L = 20480 and C = 4096."""
    episodes = with_lengths(1, 16384, 16385, 18432, 20480, 20481, 10**6)
    expected = [0, 0, -1 / 4096, -0.5, -1, -1, -1]
    assert Overlong(max_tokens=20480)(episodes) == pytest.approx(expected)
    assert Overlong(max_tokens=10, ramp=1.0)(with_lengths(0, 5, 10)) == pytest.approx([0, -0.5, -1])


def test_a_response_of_unknown_length_is_invalid(with_lengths):
    first, second = Overlong(max_tokens=10)(with_lengths(None, 1))
    assert math.isnan(first)
    assert second == 0


def test_the_limit_is_that_of_the_run():
    words = ["+term@reward.terms.overlong=overlong", "max_response_tokens=123"]
    assert build_phases(compose(words)).reward.terms["overlong"].max_tokens == 123


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


def test_the_limit_is_that_of_the_run_of_cosine_length():
    words = ["+term@reward.terms.length=cosine_length", "max_response_tokens=123"]
    words.append("reward.terms.length.of.extract=boxed")
    term = build_phases(compose(words)).reward.terms["length"]
    assert (term.max_tokens, term.of.extract) == (123, "boxed")


@pytest.mark.parametrize(
    ("response", "n", "grade"),
    [
        ("a b c d", 2, 0),
        ("a b a b", 2, -1 / 3),  # ab ba ab
        ("a a a a a", 2, -3 / 4),
        ("A a\na  a", 2, -2 / 3),  # the size of letters and the kind of white space do not count
        ("a a a a a", 5, 0),
        ("a a a a", 5, 0),  # too short
        ("", 1, 0),
        ("a b a", 1, -1 / 3),
    ],
)
def test_repeated_words_are_penalized_by_their_share(make_episodes, response, n, grade):
    assert Repetition(n=n)(make_episodes((response,))) == pytest.approx([grade])


def test_characters_can_be_counted_instead(make_episodes):
    episodes = make_episodes(("aaaaa", "abcde", "abab"))
    assert Repetition(n=2, of="characters")(episodes) == pytest.approx([-3 / 4, 0, -1 / 3])
    assert Repetition(n=2)(episodes) == [0, 0, 0]


def test_long_responses_are_read_at_once_of_repetition(make_episodes):
    (grade,) = Repetition()(make_episodes(("a " * 120_000,)))
    assert grade == pytest.approx(-1, abs=1e-4)
