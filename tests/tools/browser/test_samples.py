"""Tests the choice of samples, their tokens, and what is right."""

import json
import math
import os
import re
import sys
from itertools import pairwise

import pytest

from rl4p.base.errors import InputError
from rl4p.tools.browser.samples import (
    SHADES,
    SampleFilter,
    samples_in,
    shade,
    tokens_of,
    visible,
)


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("1+1 é \N{SNOWMAN}", "1+1 é \N{SNOWMAN}"),
        ("a\nb", "a\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}\nb"),
        ("\x1b[31m", "<U+001B>[31m"),
        ("\x00\t\r\x7f", "<U+0000><U+0009><U+000D><U+007F>"),
        ("\x9b2J", "<U+009B>2J"),  # an escape sequence in one character
        ("\u202eabc\u2066", "<U+202E>abc<U+2066>"),
        ("\u200b\ufeff\xa0\u2028", "<U+200B><U+FEFF><U+00A0><U+2028>"),
        ("\ud800", "<U+D800>"),
    ],
)
def test_what_cannot_be_seen_becomes_a_sign(text, seen):
    assert visible(text) == seen


@pytest.mark.slow
def test_every_character_can_be_printed():
    text = visible("".join(map(chr, range(sys.maxunicode + 1)))).replace("\n", "")
    assert text.isprintable()


@pytest.mark.parametrize(
    ("p", "index"), [(1.0, 0), (0.91, 0), (0.89, 1), (0.4, 2), (0.02, 3), (0.009, 4), (1e-30, 4)]
)
def test_a_token_has_the_shade_of_its_probability(p, index):
    assert shade(math.log(p)) == index


def test_odd_log_probabilities():
    assert [shade(x) for x in (None, math.nan)] == [None, None]
    assert shade(-math.inf) == len(SHADES) - 1
    assert shade(1e-6) == 0  # by rounding


def luminance(colour):
    """Returns the relative luminance of #rrggbb (WCAG 2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_shades_can_be_read_and_are_ordered_by_lightness():
    """Lightness is what every kind of colour vision sees."""
    backgrounds = []
    for each in SHADES[1:]:
        ink, paper = map(luminance, re.findall(r"#\w{6}", each.terminal))
        contrast = (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05)
        assert contrast >= 4, each
        backgrounds.append(paper)
    assert backgrounds == sorted(backgrounds, reverse=True)
    for a, b in pairwise(backgrounds):
        assert (a + 0.05) / (b + 0.05) > 1.4


def test_a_full_line(shown, full):
    sample = shown(full)
    assert (sample.step, sample.sample, sample.task, sample.correct) == (20, 1, "arithmetic", True)
    assert (sample.reward, sample.advantage, sample.length) == (1.5, 0.7071, 4)
    assert sample.tokens["prompt"] == "<|user|>1+2<|end|><|assistant|>"
    tokens = tokens_of(sample)
    last = tokens[-1]
    assert (last.text, last.id, last.logprob, last.in_loss) == ("<|end|>", 8, -6.0, False)
    assert [token.in_loss for token in tokens] == [True, True, True, False]
    assert [token.advantage for token in tokens] == [None] * 4


def test_what_a_line_lacks_is_absent(shown, short):
    sample = shown(short)
    absent = (sample.task, sample.sample, sample.status, sample.length, sample.advantage)
    assert absent == (None,) * 5
    assert sample.tokens is None
    assert tokens_of(sample) == []
    assert (sample.correct, sample.reward) == (False, 0.0)


@pytest.mark.parametrize(
    ("change", "right"),
    [
        ({"terms": {"correct": 0.99}}, False),
        ({"terms": {"format": 1.0}}, None),
        ({"terms": {"correct": "NaN"}}, None),
        ({"terms": {"correct": None}}, None),
        ({"valid": False}, None),
        ({"terms": {}}, None),
    ],
)
def test_an_answer_is_right_from_grade_1(shown, full, change, right):
    assert shown(full | change).correct is right


def chosen(run, **options):
    samples, _ = samples_in(run, None)
    return [sample.step for sample in SampleFilter(**options).chosen(samples)]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({}, [30, 20, 10]),
        ({"task": "arithmetic"}, [20]),
        ({"right": True}, [20]),
        ({"right": False}, [10]),
        ({"step": 10}, [10]),
        ({"search": "ARITH"}, [20]),
        ({"search": "ONERROR"}, [30]),
        ({"search": "5"}, [10]),
        ({"longest": 2}, [30, 20]),
        ({"longest": 1, "step": 10}, [10]),
        ({"task": "x"}, []),
    ],
)
def test_a_choice_of_samples(run, options, steps):
    assert chosen(run, **options) == steps


def test_longest_counts_tokens(shown, full):
    rows = [full | {"step": n, "length": n, "response": "a" * (9 - n)} for n in range(4)]
    samples = [shown(row) for row in rows]
    assert [sample.step for sample in SampleFilter(longest=2).chosen(samples)] == [3, 2]
    with pytest.raises(InputError, match="longest and limit are both"):
        SampleFilter(longest=2, limit=1)


def test_the_term_of_the_run_decides(run, full):
    (run / "config.yaml").write_text("evaluation: {term: format}\n")
    samples, term = samples_in(run, None)
    assert term == "format"
    assert [sample.correct for sample in samples] == [None, True, None]
    with pytest.raises(InputError, match="term=fluent is not a term of these samples"):
        samples_in(run, "fluent")


def test_a_file_of_responses(tmp_path):
    path = tmp_path / "a.responses.jsonl"
    line = {"prompt": "1+1", "response": "2", "terms": {"correct": 1.0}, "reward": None}
    path.write_text(json.dumps(line) + "\n" + json.dumps(line)[:20])  # still being written
    (sample,), _ = samples_in(path, None)
    assert (sample.step, sample.correct, sample.reward) == (None, True, None)


def test_the_term_of_an_evaluation_decides_unless_another_is_given(tmp_path):
    """`correct` in the line is by the term of the evaluation, which the file does not name."""
    line = {"task": "t", "id": "a", "prompt": "1+1", "answer": "2", "response": "3", "length": 7,
            "status": "completed", "terms": {"correct": 0.0, "capital": 1.0}, "valid": True,
            "correct": True}  # fmt: skip
    (tmp_path / "responses.jsonl").write_text(json.dumps(line) + "\n")
    for path in (tmp_path, tmp_path / "responses.jsonl"):
        (sample,), _ = samples_in(path, None)
        assert (sample.prompt, sample.length, sample.correct) == ("1+1", 7, True)
        (sample,), _ = samples_in(path, "correct")
        assert (sample.correct, sample.sample) == (False, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no lines"),
        ("{}\n", "line 1: a sample needs a prompt"),
        ("[1]\n", "line 1: a JSON object is expected"),
        ("a\n", "line 1: not JSON"),
        *(
            (f'{{"prompt": "", "response": "", "tokens": {tokens}}}\n', "line 1: tokens must")
            for tokens in (
                '{"texts": ["a"], "ids": [1, 2]}',
                '{"texts": 1}',
                '{"texts": ["a"], "logprobs": ["x"]}',
            )
        ),
    ],
)
def test_a_broken_file_is_named(tmp_path, content, message):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(InputError, match=rf"a\.jsonl,? {message}"):
        samples_in(tmp_path / "a.jsonl", None)


def test_a_folder_without_samples_is_named(tmp_path):
    with pytest.raises(InputError, match="has no samples: it is not the folder of a run"):
        samples_in(tmp_path, None)
    os.mkfifo(tmp_path / "pipe")  # no reader waits for it
    for name in ("a", "pipe"):
        with pytest.raises(InputError, match="does not exist"):
            samples_in(tmp_path / name, None)
