"""Tests the choice of samples, their tokens, and what is right."""

import json
import os

import pytest

from rl4p.base.errors import InputError
from rl4p.tools.browser.samples import SampleFilter, rendered_prompt, samples_in, tokens_of


def test_a_full_line(shown, full):
    sample = shown(full)
    assert (sample.step, sample.sample, sample.task, sample.correct) == (20, 1, "arithmetic", True)
    assert (sample.reward, sample.advantage, sample.length) == (1.5, 0.7071, 4)
    assert rendered_prompt(sample) == "<|user|>1+2<|end|><|assistant|>"
    tokens = tokens_of(sample)
    last = tokens[-1]
    assert (last.text, last.id, last.logprob, last.in_loss) == ("<|end|>", 8, -6.0, False)
    assert [token.in_loss for token in tokens] == [True, True, True, False]
    assert [token.advantage for token in tokens] == [None] * 4


def test_what_a_line_lacks_is_absent(shown, short):
    sample = shown(short)
    absent = (sample.task, sample.sample, sample.status, sample.length, sample.advantage)
    assert absent == (None,) * 5
    assert rendered_prompt(sample) is None
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
