"""Tests the commit of a checkout, and the data sets of a run."""

import json
import subprocess
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from rl4p.base.types import Prompt
from rl4p.data.files import JSONLines, Parquet
from rl4p.data.mixture import Mixture
from rl4p.data.synthetic import Sorting
from rl4p.runs.environment import data_sets, git_state


def git(checkout: Path, *words: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    command = ["git", "-C", str(checkout), *identity, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path) -> Path:
    place = tmp_path / "checkout"
    place.mkdir()
    git(place, "init", "-q")
    (place / "a").write_text("1")
    (place / ".gitattributes").write_text("a filter=x\n")
    git(place, "add", ".")
    git(place, "commit", "-qm", "one")
    return place


def test_a_checkout_has_a_commit_and_may_differ_from_it(checkout):
    assert git_state(checkout.parent) == {}
    clean = {"git_commit": git(checkout, "rev-parse", "HEAD"), "git_dirty": False}
    assert git_state(checkout) == clean
    (checkout / "a").write_text("2")
    assert git_state(checkout) == clean | {"git_dirty": True}
    git(checkout, "add", "a")
    assert git_state(checkout) == clean | {"git_dirty": True}
    git(checkout, "reset", "-q", "--hard")
    (checkout / "b").write_text("new")
    assert git_state(checkout) == clean | {"git_dirty": True}
    (checkout / ".git" / "info" / "exclude").write_text("b")
    assert git_state(checkout) == clean


@pytest.mark.parametrize("way", ["packed", "detached", "linked"])
def test_a_commit_is_found_wherever_it_stands(checkout, way):
    expected = {"git_commit": git(checkout, "rev-parse", "HEAD"), "git_dirty": False}
    if way == "packed":
        git(checkout, "pack-refs", "--all")
    elif way == "detached":
        git(checkout, "checkout", "-q", "--detach")
    else:
        git(checkout, "worktree", "add", "-q", "../linked")
        checkout = checkout.parent / "linked"
    assert git_state(checkout) == expected


def test_a_repository_without_a_commit_names_none(tmp_path):
    git(tmp_path, "init", "-q")
    assert git_state(tmp_path) == {}


@pytest.mark.parametrize("attack", ["fsmonitor", "filter", "hook", "include", "environment"])
def test_a_hostile_checkout_runs_no_program(checkout, attack, monkeypatch):
    canary, program = checkout.parent / "canary", checkout.parent / "program"
    program.write_text(f"#!/bin/sh\necho > {canary}\ncat\n")
    program.chmod(0o755)
    commit = git(checkout, "rev-parse", "HEAD")
    config = checkout / ".git" / "config"
    monitor = f"[core]\n\tfsmonitor = {program}\n"
    if attack == "fsmonitor":
        config.write_text(config.read_text() + monitor)
    elif attack == "filter":
        config.write_text(config.read_text() + f'[filter "x"]\n\tclean = {program}\n')
    elif attack == "hook":
        (checkout / ".git" / "hooks" / "post-index-change").symlink_to(program)
    elif attack == "include":
        (checkout / "more").write_text(monitor)
        config.write_text(config.read_text() + "[include]\n\tpath = ../more\n")
    else:
        monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
        monkeypatch.setenv("GIT_CONFIG_KEY_0", "filter.x.clean")
        monkeypatch.setenv("GIT_CONFIG_VALUE_0", str(program))
    (checkout / "a").write_text("2")
    assert git_state(checkout) == {"git_commit": commit, "git_dirty": True}
    assert not canary.exists()
    git(checkout, "status")
    git(checkout, "add", "a")  # writes the index, which status does only at some times
    assert canary.exists()  # git itself runs the program


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
