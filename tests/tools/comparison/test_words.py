"""Tests the sentences: they claim what the seeds support, and say where seeds are missing."""

import math
import re

import numpy as np
import pytest
from scipy.stats import false_discovery_control, sem, ttest_1samp
from scipy.stats import t as student

from rl4p.tools.comparison import words
from rl4p.tools.comparison.measures import Value
from rl4p.tools.comparison.words import amount, duration, number, share, span
from rl4p.tools.runs import LeftOut
from tests.support.compared_runs import SUMS, compare, run_with, runs
from tests.support.documents import ROOT


def said(*left_out, **algorithms):
    return words.sentences(compare(runs(**algorithms), left_out))


def test_a_supported_difference_is_claimed_with_its_figures():
    best, claim, *rest = said(a=[0.70, 0.72, 0.71], b=[0.90, 0.91, 0.92])
    assert best.startswith(f"advantage=b has the highest {SUMS}: 0.910, 95% interval [0.8")
    assert best.endswith("the interquartile mean of 3 seeds.")
    assert claim.startswith(
        "The seeds support that advantage=b is better than advantage=a: +0.200 over 3 seeds that "
        "both have, 96% interval [+0.1"
    )
    assert claim.endswith("probability of improvement 1.00.")
    assert any("in at most 4% of such sweeps" in sentence for sentence in rest)
    assert not any("cannot distinguish" in sentence for sentence in rest)


def test_an_unsupported_difference_is_not_claimed():
    text = " ".join(said(a=[0.70, 0.92, 0.71], b=[0.90, 0.71, 0.82]))
    assert "The seeds support no difference between the groups." in text
    assert "The seeds cannot distinguish advantage=b from advantage=a: +0.0" in text
    assert "may be real" in text
    assert re.search(
        r"With so many seeds, 80% of sweeps detect a difference of 0\.\d+; "
        r"(about \d+|more than 1,000) seeds of each would detect the one seen as often\.",
        text,
    )


def test_several_differences_of_a_group_are_one_sentence():
    text = said(
        a=[0.70, 0.72, 0.71], b=[0.90, 0.91, 0.92], c=[0.69, 0.73, 0.70], d=[0.905, 0.905, 0.92]
    )
    assert text[1] == (
        "The seeds support that advantage=b is better than advantage=a and advantage=c."
    )
    assert "The seeds cannot distinguish advantage=b from advantage=d: +0." in " ".join(text)
    assert any("at most 4% are expected to be wrong (6 comparisons)" in each for each in text)


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_seeds_are_told_and_nothing_is_claimed(count):
    text = " ".join(said(a=[0.1] * count, b=[0.9, 0.8][:count]))
    assert "Every group has fewer than 3 seeds, which give no interval" in text
    assert "seed=0,1,2,3,4" in text
    assert "support that" not in text
    assert "interval [" not in text
    text = said(a=[0.1, 0.2], b=[0.9, 0.8, 0.7])
    assert any(sentence.startswith("advantage=a has fewer than 3 seeds") for sentence in text)


def test_equal_values_are_told():
    comparison = compare([*runs(a=[0.5, 0.5, 0.5], b=[0.1, 0.2, 0.3])], metric=SUMS)
    assert comparison.results[0].interval is not None  # pass@1 counts prompts
    rows = [{"step": 0, "other": 1.0}]
    members = [type(run)(**(vars(run) | {"rows": rows})) for run in runs(a=[1, 1, 1], b=[1, 1, 1])]
    text = " ".join(words.sentences(compare(members, metric="other")))
    assert "All seeds of advantage=a and advantage=b have equal values" in text
    assert "advantage=a and advantage=b have the highest other: 1.000" in text
    text = said(a=[0.1 + 0.2] * 3, b=[0.3] * 3)[0]  # equal up to rounding
    assert text.startswith(f"advantage=a and advantage=b have the highest {SUMS}: 0.300")


def test_a_single_configuration_is_described_and_runs_that_are_left_out_are_counted():
    left_out = [LeftOut(name="x", reason="y")] * 2
    text, last = said(*left_out, a=[0.5, 0.6, 0.7])
    assert text.startswith(f"All runs have one configuration. Its {SUMS} is 0.600, 95% interval")
    assert last == "2 runs are left out."
    assert said(left_out[0], a=[0.5])[-1] == "1 run is left out."


def test_many_groups_are_shortened():
    many = {f"a{i}": [0.1, 0.1 + 1e-3 * i, 0.2] for i in range(30)}
    text = said(best=[0.9, 0.91, 0.92], **many)
    assert "and 25 others" in " ".join(text)


def test_a_sweep_of_many_differences_has_few_sentences():
    text = said(**{f"a{i}": [i, i + 0.01, i + 0.02] for i in range(30)})
    assert len(text) == 1 + words.SENTENCES + 3
    assert "25 further groups are better than another one; compare.json has all" in " ".join(text)


def test_numbers_are_short():
    assert number(0.91234) == "0.912"
    assert number(0.05, sign=True) == "+0.050"
    assert number(-0.1, sign=True) == "-0.100"
    assert number(-0.0) == "0.000"
    assert number(3.1e-5) == "3.1e-05"
    assert number(12345.6) == "1.23e+04"
    assert span((0.1, 0.25)) == "[0.100, 0.250]"
    assert share(0.126) == "12.6 %"
    amounts = [amount(x) for x in (0.5, 999, 12_345, 1.5e6, 2e9)]
    assert amounts == ["0.5", "999", "12.3k", "1.5M", "2B"]
    assert [duration(x) for x in (59.6, 600, 9000)] == ["60 s", "10 min", "2.5 h"]


def test_what_is_unknown_is_a_dash():
    unknown = [span(None), *(text(math.nan) for text in (number, share, amount, duration))]
    assert set(unknown) == {"\N{EM DASH}"}


def test_the_number_that_counts_and_tasks_that_are_left_out_are_named():
    members = runs(a=[0.5, 0.6, 0.7])
    rows = [*members[0].rows, {"step": 9, SUMS: 1.0, "eval/words/pass_at_1": 1.0}]
    members[0] = type(members[0])(**(vars(members[0]) | {"rows": rows}))
    said = words.sentences(compare(members, value=Value("area")))
    assert said[0].startswith(
        f"All runs have one configuration. Its area under the curve of {SUMS}"
    )
    assert "Not every run has eval/words/pass_at_1, so the others are compared." in said


def test_a_difference_over_questions_is_said_or_why_there_is_none():
    a, b = [1.0] * 30 + [0.0] * 10, [1.0] * 20 + [0.0] * 20
    comparison = compare([run_with("a", 0, a), run_with("b", 0, b)])
    low, high = comparison.compared[0].questions.interval
    assert (
        "advantage=a and advantage=b answered the same 40 questions: the paired difference is "
        f"+0.250, 95% interval [{low:+.3f}, {high:+.3f}]."
    ) in words.sentences(comparison)
    others = [run_with("a", 0, a), run_with("b", 0, b, "x"), run_with("c", 0, b, "y")]
    text = words.sentences(compare(others))
    assert (
        "The questions of advantage=a are not paired with those of advantage=b and advantage=c: "
        "their 40 questions differ in ids, texts, answers or metadata."
    ) in text
    assert not any("paired difference" in sentence for sentence in text)


def test_the_guide_has_the_sentences_of_the_method():
    text = " ".join((ROOT / "docs" / "sweeps.md").read_text().split())
    assert all(f"* {sentence}" in text for sentence in words.METHOD)


def test_the_method_is_the_one_that_the_sentences_describe():
    """Computes a comparison from the sentences alone, with SciPy, and compares every number."""
    values = {"a": [0.70, 0.72, 0.71], "b": [0.90, 0.91, 0.95], "c": [0.71, 0.70, 0.75]}
    comparison = compare(runs(**values))
    text = " ".join(words.METHOD)
    for result in comparison.results:  # three seeds: the interquartile mean is the mean
        assert "Student's at 95%" in text
        name = result.group.label
        expected = student.interval(0.95, 2, np.mean(values[name]), sem(values[name]))
        assert result.interval == pytest.approx(expected, abs=2e-3)
    p_values = []
    for pair in comparison.compared:
        better, worse = (
            np.array(values[comparison.results[index].group.label])
            for index in (pair.better, pair.worse)
        )
        assert "intervals at 96%" in text
        difference = better - worse  # of runs of the same seed
        expected = student.interval(0.96, 2, difference.mean(), sem(difference))
        assert pair.difference.interval == pytest.approx(expected, abs=2e-3)
        p_values.append(ttest_1samp(difference, 0).pvalue)
    assert "Benjamini and Hochberg at a false discovery rate of 4%" in text
    supported = false_discovery_control(p_values, method="bh") <= 0.04
    assert [pair.supported for pair in comparison.compared] == supported.tolist()
    assert set(supported) == {True, False}
