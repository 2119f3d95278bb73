"""Tests that a sample survives the way to a line of JSON and back."""

import json
from dataclasses import fields, replace
from datetime import date

import numpy as np
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Prompt, Question
from rl4p.runs import record
from rl4p.runs.record import MOST_LEVELS, Record
from rl4p.runs.sample import KINDS, Sample, SampleFile, Status, read_samples

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


ONE = Sample(prompt="1+1", response="é\n\u2028", id="a", sample=1, length=3, logprob=-1.25)
TWO = Sample(prompt="2+2", response="", id="b", sample=0, status=Status.ABORTED, metadata={"b": 1})


@pytest.fixture
def opened(tmp_path):
    """Returns a function that opens the file of a job."""
    files = []

    def start(settings=None, name="out"):
        folder = tmp_path / name
        files.append(SampleFile(folder / "a.jsonl", folder / "settings.json", folder))
        files[-1].check(settings or {"seed": 0})
        return files[-1]

    yield start
    for file in files:
        file.close()


@pytest.fixture
def started(opened):
    """Returns the closed file of a job with two samples."""
    file = opened({"seed": 0, "rollout": {"temperature": 1.0, "top_k": 0}})
    file.append([ONE])
    file.append([TWO])
    file.close()
    return file


def test_samples_are_read_again_and_closing_releases_them(started, opened):
    again = opened({"seed": 0, "rollout": {"temperature": 1.0, "top_k": 0}})
    assert again.samples == started.samples == [ONE, TWO]
    (place, end) = next((place, end) for _, place, end in read_samples(again.path))
    assert place == f"{again.path}, line 1"
    assert again.path.read_bytes()[:end].count(b"\n") == 1
    with pytest.raises(InputError, match=r"Another process is writing .*a\.jsonl"):
        opened()


@pytest.mark.parametrize("cut", [1, 9])
def test_a_kill_in_the_middle_of_a_line_loses_this_line_only(started, cut):
    whole = started.path.read_bytes()
    started.path.write_bytes(whole[:-cut])
    again = SampleFile(started.path, started.settings_path, started.out)
    assert again.samples == [ONE]
    again.append([TWO])
    again.close()
    assert again.path.read_bytes() == whole


def test_the_last_samples_can_be_removed(started):
    again = SampleFile(started.path, started.settings_path, started.out)
    again.keep(1)
    again.append([TWO])
    again.append([ONE])
    again.keep(2)
    again.close()
    assert again.samples == [sample for sample, _, _ in read_samples(again.path)] == [ONE, TWO]


def test_other_settings_are_refused_by_name(started, opened):
    before = started.path.read_bytes()
    with pytest.raises(InputError) as error:
        opened({"seed": 1, "rollout": {"temperature": 1.0}, "step": 3})
    assert "has responses of another command: seed was 0 and would be 1" in str(error.value)
    assert "rollout.top_k was 0 and would be absent" in str(error.value)
    assert "step was absent and would be 3" in str(error.value)
    assert started.path.read_bytes() == before


def test_without_samples_settings_may_change(opened):
    opened({"seed": 0}).close()
    file = opened({"seed": 1})
    assert json.loads(file.settings_path.read_text()) == {"seed": 1}
    file.append([ONE])
    file.settings_path.write_text("[" * 10**5)
    with pytest.raises(InputError, match=r"settings\.json: not JSON"):
        file.check({})


def test_without_its_settings_a_file_starts_again(started, opened):
    started.settings_path.unlink()
    assert opened().samples == []


def test_a_folder_that_cannot_be_is_named(opened, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"out=.*file/new cannot be written: Not a directory"):
        opened(name="file/new")


def test_replacing_keeps_the_order_and_a_file_that_cannot_be_written_is_named(started):
    started.replace([TWO, ONE])
    assert [sample for sample, _, _ in read_samples(started.path)] == [TWO, ONE]
    started.path.unlink()
    started.path.mkdir()
    with pytest.raises(RunError, match=r"Cannot write .*: Is a directory\."):
        started.append([ONE])


LINE = '{"prompt": "a", "response": "b"'


def nested(levels):
    """Returns the metadata of a line, with lists in so many levels below it."""
    return ', "metadata": {"a": ' + "[" * levels + "]" * levels + "}"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("\n{}\n", "line 2: a sample needs a prompt"),
        ("[1]\n", "line 1: a JSON object is expected, not list"),
        ("no json\n", "line 1: not JSON"),
        (b"\xff\n", "line 1: not UTF-8"),
        (LINE + ', "metadata": ' + "[" * 10**5 + "\n", "line 1: not JSON"),
        (LINE + nested(MOST_LEVELS - 1) + "}\n", "line 1: .*more than 400 levels"),
        (LINE + nested(900) + "}\n", "line 1: .*more than 400 levels"),
        (LINE + ', "length": ' + "9" * 5000 + "}\n", "line 1: not JSON"),
        (LINE + ', "colour": 1}\n', "line 1: a sample has no colour"),
        ('{"prompt": "' + "a" * 2000 + '", "response": "b"}\n', "a line of more than 0 MiB"),
    ],
    ids=range(10),
)
def test_a_hostile_line_is_named_by_every_command(tmp_path, monkeypatch, content, said):
    monkeypatch.setattr(record, "LONGEST_LINE", 1000 if "MiB" in said else record.LONGEST_LINE)
    path = tmp_path / "a.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=said):
        list(read_samples(path))
    (tmp_path / "settings.json").write_text("{}")
    with pytest.raises(InputError, match=said):
        SampleFile(path, tmp_path / "settings.json", tmp_path)
    assert path.read_bytes() == (content if isinstance(content, bytes) else content.encode())


def test_a_line_is_read_to_the_deepest_level_that_is_written(tmp_path):
    """On each version of Python; the line and its metadata are two levels."""
    path = tmp_path / "a.jsonl"
    path.write_text(LINE + nested(MOST_LEVELS - 2) + "}\n")
    ((sample, *_),) = read_samples(path)
    assert json.dumps(sample.metadata["a"]) == "[" * (MOST_LEVELS - 2) + "]" * (MOST_LEVELS - 2)


@pytest.mark.parametrize(("unfinished", "count"), [(False, 1), (True, 2)])
def test_a_last_line_without_a_line_feed_may_be_unfinished(tmp_path, unfinished, count):
    (tmp_path / "a.jsonl").write_text(LINE + "}\n\n" + LINE + "}")
    assert len(list(read_samples(tmp_path / "a.jsonl", unfinished=unfinished))) == count
    (tmp_path / "a.jsonl").unlink()
    with pytest.raises(InputError, match=r"a\.jsonl cannot be read: No such file"):
        list(read_samples(tmp_path / "a.jsonl"))
