"""Tests that a sample survives the way to a line of JSON and back."""

import json
from dataclasses import fields, replace
from datetime import date

import numpy as np
import pytest

from rl4p.base.types import Prompt, Question
from rl4p.runs.record import Record
from rl4p.runs.sample import KINDS, Sample, Status

FULL = Sample(
    prompt="1+2",
    answer="3",
    generation_prompt="<|assistant|><think>",
    response="#### 3 \u2028 \U0001f600",
    status=Status.TRUNCATED,
    step=7,
    id="a/1",
    task="sums",
    sample=2,
    seed=0,
    metadata={"board": ["oA", "Ao"], "size": 2},
    length=5,
    logprob=-2.5,
    reward=float(np.float32(0.1)),
    terms={"correct": 1.0, "moves": None, "format": 0.1 + 0.2},
    valid=False,
    correct=True,
    regraded=False,
    advantage=-1 / 3,
    tokens={"ids": [1, 2], "texts": ["a", "b"], "logprobs": [-0.1, -1e-7], "mask": "10"},
    turns=[
        {
            "text": "<tool_call>",
            "tokens": 5,
            "calls": [{"malformed": "the call is no JSON"}],
            "messages": [{"role": "tool", "content": "Error"}],
            "metrics": {"tool_calls": 1.0},
            "versions": [6, 7],
            "state": "start",
            "reward": -0.5,
            "sampling_seconds": 0.25,
            "environment_seconds": 1.0,
        }
    ],
    failure="KeyError: 'lost'",
)
SHORT = Sample(prompt="", response="")


@pytest.mark.parametrize("status", [None, *Status])
@pytest.mark.parametrize("sample", [FULL, SHORT, replace(SHORT, tokens={})])
def test_a_sample_survives_json(sample, status):
    sample = replace(sample, status=status)
    row = sample.to_dict()
    assert Sample.from_dict(json.loads(json.dumps(row))) == sample
    assert row.get("status") == status


def test_a_sample_survives_the_record_of_a_run(tmp_path):
    record = Record(tmp_path)
    infinite = replace(
        FULL, reward=float("-inf"), advantage=float("inf"), logprob=float("-inf"), terms={"a": None}
    )
    record.log_samples(7, [FULL.to_dict(), infinite.to_dict()])
    assert [Sample.from_dict(row) for row in record.samples()] == [FULL, infinite]


def test_every_field_of_a_full_sample_is_written_and_has_a_type():
    assert FULL.to_dict().keys() == {each.name for each in fields(Sample)} == KINDS.keys()
    assert SHORT.to_dict() == {"prompt": "", "response": ""}


def test_the_dictionary_is_a_copy():
    FULL.to_dict()["terms"]["correct"] = 0.0
    assert FULL.terms["correct"] == 1.0


def test_metadata_of_a_question_stands_in_its_samples():
    """Graders need it if the responses are graded again."""
    metadata = {"board": "oA", "day": date(2026, 1, 2)}
    question = Question(id="a", question="b", answer="c", task="d", metadata=metadata)
    sample = Sample.response_to(question, "e", sample=0)
    assert sample.to_dict() == {
        "id": "a", "prompt": "b", "answer": "c", "task": "d", "response": "e", "sample": 0,
        "metadata": {"board": "oA", "day": "2026-01-02"},
    }  # fmt: skip
    prompt = Prompt(**vars(question), tokens=(0,), generation_prompt="<think>")
    assert Sample.response_to(prompt, "e").generation_prompt == "<think>"
    without = Sample.response_to(replace(question, metadata={}), "e")
    assert "metadata" not in without.to_dict()


def test_null_is_an_absent_key_and_numbers_may_be_ids_and_answers():
    row = dict.fromkeys(KINDS) | {"prompt": "a", "response": "b"}
    assert Sample.from_dict(row) == Sample(prompt="a", response="b")
    sample = Sample.from_dict({"prompt": "a", "response": "b", "id": 7, "answer": 1e21})
    assert (sample.id, sample.answer) == ("7", "1" + "0" * 21)


def test_numbers_in_tokens_that_are_not_finite_are_texts_in_a_record(tmp_path):
    Record(tmp_path).log_samples(7, [replace(FULL, tokens={"logprobs": [-np.inf]}).to_dict()])
    (row,) = Record(tmp_path).samples()
    assert Sample.from_dict(row) == replace(FULL, tokens={"logprobs": ["-Infinity"]})


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": None}, "a sample needs a prompt; this one has prompt, response"),
        ({"response": None}, "a sample needs a response"),
        ({"status": "done"}, "status is 'done', not one of completed, truncated, aborted"),
        ({"status": ["completed"]}, 'status must be one of completed.*, not ."completed"'),
        ({"prompt": 1}, "prompt must be a text, not 1"),
        ({"answer": True}, "answer must be a text, not true"),
        ({"id": []}, r"id must be a text, not \[\]"),
        ({"terms": [1]}, r"terms must be an object, not \[1\]"),
        ({"terms": {"correct": [1]}}, r"\[1\] is not a number"),
        ({"reward": "high"}, '"high" is not a number'),
        ({"logprob": "high"}, '"high" is not a number'),
        ({"reward": [1]}, r"reward must be a number, not \[1\]"),
        ({"metadata": [1]}, r"metadata must be an object, not \[1\]"),
        ({"metadata": []}, r"metadata must be an object, not \[\]"),
        ({"task": 1}, "task must be a text, not 1"),
        ({"turns": {}}, r"turns must be a list of turns, not \{\}"),
        ({"turns": [3]}, "a turn is an object with a text"),
        ({"turns": [{"tokens": 3}]}, "a turn is an object with a text"),
        ({"turns": [{"text": "t", "word": 3}]}, "a turn has no word; its keys are text, state"),
        ({"turns": [{"text": "t", "reward": "x"}]}, 'reward of a turn must be a number, not "x"'),
        ({"turns": [{"text": "t", "calls": [3]}]}, "calls of a turn must be a list of objects"),
        ({"turns": [{"text": "t", "metrics": {"n": "x"}}]}, "must be numbers, and n is not"),
        ({"failure": 7}, "failure must be a text, not 7"),
        ({"tokens": 7}, "tokens must be an object, not 7"),
        ({"step": "x"}, 'step must be a natural number, not "x"'),
        *(
            ({key: value}, f"{key} must be a natural number, not {said}$")
            for key in ("length", "step", "sample", "seed")
            for value, said in [(3.0, "3.0"), (True, "true"), (-4, "-4"), ("99", '"99"')]
        ),
        ({"valid": 1}, "valid must be true or false, not 1"),
        ({"correct": 1.0}, "correct must be true or false, not 1.0"),
        ({"rewards": 1.0}, "a sample has no rewards; its keys are prompt, response, answer"),
        ({"question": "1"}, "a sample has no question; its keys are prompt"),
    ],
)
def test_what_is_not_a_sample_is_refused(row, said):
    with pytest.raises(ValueError, match=said):
        Sample.from_dict({"prompt": "1", "response": "2"} | row)
