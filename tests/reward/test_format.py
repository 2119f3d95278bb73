import math
import threading

import pytest

from rl4p.base.types import Episode, Prompt
from rl4p.reward.format import Format


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
    monkeypatch.setattr("rl4p.reward.format.SECONDS", 0.2)
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
