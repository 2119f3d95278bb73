"""Tests that a sample survives the way to a line of JSON and back."""

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from rl4p.runs.record import Record
from rl4p.runs.responses.browser.samples import sample as shown
from rl4p.runs.responses.sample import OF_FINISH, Sample, Status

FULL = Sample(
    prompt="1+2",
    answer="3",
    response="#### 3 \u2028 \U0001f600",
    status=Status.TRUNCATED,
    step=7,
    id="a/1",
    task="sums",
    sample=2,
    metadata={"board": ["oA", "Ao"], "size": 2},
    length=5,
    reward=float(np.float32(0.1)),
    terms={"correct": 1.0, "moves": None, "format": 0.1 + 0.2},
    valid=False,
    advantage=-1 / 3,
    tokens={"ids": [1, 2], "texts": ["a", "b"], "logprobs": [-0.1, -1e-7], "mask": "10"},
)


@pytest.mark.parametrize("status", list(Status))
@pytest.mark.parametrize("sample", [FULL, Sample(prompt=""), Sample(prompt="", tokens={})])
def test_a_sample_survives_json(sample, status):
    sample = replace(sample, status=status)
    row = sample.to_dict()
    assert Sample.from_dict(json.loads(json.dumps(row))) == sample
    assert row["status"] == status.value


def test_a_sample_survives_the_record_of_a_run(tmp_path):
    record = Record(tmp_path)
    infinite = replace(FULL, reward=float("-inf"), advantage=float("inf"))
    record.log_samples(7, [FULL.to_dict(), infinite.to_dict()])
    assert [Sample.from_dict(row) for row in record.samples()] == [FULL, infinite]


def test_every_field_of_a_full_sample_is_written():
    assert FULL.to_dict().keys() == {each.name for each in fields(Sample)}
    assert Sample(prompt="a").to_dict() == {"prompt": "a", "response": "", "status": "pending"}


def test_the_dictionary_is_a_copy():
    FULL.to_dict()["terms"]["correct"] = 0.0
    assert FULL.terms["correct"] == 1.0


def test_the_states_are_those_of_a_response():
    assert list(Status) == ["pending", "completed", "truncated", "aborted"]


@pytest.mark.parametrize(("finish", "status"), OF_FINISH.items())
def test_lines_of_older_runs_have_the_reason_why_a_response_ended(finish, status):
    row = {"prompt": "1+2", "response": "3", "finish": finish, "advantage": None}
    assert Sample.from_dict(row) == Sample(prompt="1+2", response="3", status=status)
    assert Sample.from_dict(row | {"status": None}).status == status
    assert shown(row, "correct").status == status


@pytest.mark.parametrize("row", [{"status": "done"}, {"finish": "done"}], ids=str)
def test_the_browser_shows_a_status_that_is_unknown(row):
    assert shown({"response": "3"} | row, "correct").status == "done"


def test_numbers_in_tokens_that_are_not_finite_are_texts_in_a_record(tmp_path):
    Record(tmp_path).log_samples(7, [replace(FULL, tokens={"logprobs": [-np.inf]}).to_dict()])
    (row,) = Record(tmp_path).samples()
    assert Sample.from_dict(row) == replace(FULL, tokens={"logprobs": ["-Infinity"]})


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"response": "3"}, "a sample needs a prompt"),
        ({"prompt": "1", "status": "done"}, "status is 'done', not one of pending, completed"),
        ({"prompt": "1", "finish": "over"}, "finish is 'over', not one of stop, length, abort"),
        ({"prompt": "1", "finish": ["stop"]}, r"finish is \['stop'\], not one of stop, length"),
        ({"prompt": "1", "finish": "stop", "status": "completed"}, "a sample has no finish"),
        ({"prompt": None}, "prompt must be a text, not None"),
        ({"prompt": "1", "terms": [1]}, r"terms must be an object, not \[1\]"),
        ({"prompt": "1", "terms": {"correct": [1]}}, r"\[1\] is not a number"),
        ({"prompt": "1", "reward": "high"}, "'high' is not a number"),
        ({"prompt": "1", "metadata": None}, "metadata must be an object, not None"),
        ({"prompt": "1", "step": "x"}, "step must be an integer, not 'x'"),
        ({"prompt": "1", "length": True}, "length must be an integer, not True"),
        ({"prompt": "1", "valid": 1}, "valid must be true or false, not 1"),
        ({"prompt": "1", "rewards": 1.0}, "a sample has no rewards; its keys are prompt, answer"),
    ],
)
def test_what_is_not_a_sample_is_refused(row, said):
    with pytest.raises(ValueError, match=said):
        Sample.from_dict(row)
