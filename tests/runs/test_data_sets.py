"""Tests that the data sets of a run are those that it uses, with digests of their rows."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from rl4p.base.types import Prompt
from rl4p.data.files import JSONLines, Parquet
from rl4p.data.mixture import Mixture
from rl4p.data.synthetic import Sorting
from rl4p.runs.data_sets import data_sets


def prompts_of(questions, tokens=(1,)):
    by_id = {id(row): Prompt(**vars(row) | {"tokens": tokens}) for row in questions}
    return [by_id[id(row)] for row in questions]


def write(path, *numbers):
    rows = [{"question": f"{number}?", "answer": f"#### {number}"} for number in numbers]
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_file_has_a_digest_of_its_rows_whatever_its_place_and_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = JSONLines(path=write(tmp_path / "a.jsonl", 1, 2), held_out_path="not_used.jsonl")
    config = {"data": {"path": "a.jsonl", "held_out_path": "not_used.jsonl"}}
    (training,) = data_sets(config, "training", prompts_of(data.train()))
    assert training["digest"]
    assert training == {
        "name": "a.jsonl",
        "key": "data",
        "context": "training",
        "uri": str(tmp_path / "a.jsonl"),
        "rows": 2,
        "digest": training["digest"],
    }
    moved = JSONLines(path=write(tmp_path / "b.jsonl", 1, 2), held_out_path="not_used.jsonl")
    config = {"data": {"path": "b.jsonl"}}
    (same,) = data_sets(config, "training", prompts_of(moved.train(), tokens=(7,)))
    assert same["digest"] == training["digest"]
    changed = JSONLines(path=write(tmp_path / "b.jsonl", 1, 3), held_out_path="not_used.jsonl")
    (other,) = data_sets(config, "training", prompts_of(changed.train()))
    assert other["digest"] != training["digest"]


def test_a_folder_of_parquet_files_has_a_digest_of_its_rows(tmp_path):
    digests = set()
    for number in (2, 3):
        write(tmp_path / "1.parquet", 1)
        write(tmp_path / "2.parquet", number)
        data = Parquet(path=str(tmp_path), held_out_size=0)
        config = {"data": {"path": str(tmp_path)}}
        (each,) = data_sets(config, "training", prompts_of(data.train()))
        assert (each["name"], each["rows"]) == (tmp_path.name, 2)
        digests.add(each["digest"])
    assert len(digests) == 2


def test_each_set_of_a_mixture_is_one_with_its_different_rows(tmp_path):
    digests = []
    for number in (2, 3):
        path = write(tmp_path / "a.jsonl", 1, number)
        sets = {"mine": JSONLines(path=path, held_out_size=0), "sorted": Sorting(train_size=7)}
        config = {"data": {"sets": {"mine": {"path": path}, "sorted": {"train_size": 7}}}}
        prompts = prompts_of(Mixture(sets=sets, weights={"mine": 5}).train())
        mine, generated = data_sets(config, "training", prompts)
        assert (mine["name"], mine["key"], mine["rows"]) == ("a.jsonl", "data.sets.mine", 2)
        assert len(prompts) > 9  # rows are repeated
        key = "data.sets.sorted"
        assert (generated["name"], generated["key"], generated["uri"]) == ("sorted", key, None)
        digests.append((mine["digest"], generated["digest"]))
    (before, generated), (after, again) = digests
    assert before != after
    assert generated == again


@pytest.mark.parametrize(
    ("data", "tasks", "name", "key"),
    [
        ({"path": "a.jsonl"}, {}, "a.jsonl (held out)", "data"),
        ({"path": "a.jsonl", "held_out_path": "b.jsonl"}, {}, "b.jsonl", "data"),
        ({"path": "a"}, {"x": {"path": "c.jsonl"}}, "c.jsonl (held out)", "evaluation.tasks.x"),
        ({"train_size": 3}, {}, "x (held out)", "data"),
        ({"path": "a.jsonl", "task_key": "kind"}, {}, "a.jsonl, x (held out)", "data"),
    ],
)
def test_the_data_of_an_evaluation_are_named_as_such(data, tasks, name, key):
    prompt = Prompt(id="1", question="1?", answer="1", task="x", tokens=(1,))
    config = {"data": data, "evaluation": {"tasks": tasks}}
    (each,) = data_sets(config, "evaluation", [prompt])
    assert (each["name"], each["key"], each["context"]) == (name, key, "evaluation")
