"""Tests the lines of responses, and that an incomplete chunk is removed."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rl4p.errors import InputError, RunError
from rl4p.loop.evaluation import Chunk
from rl4p.reward.weighted import Weighted
from rl4p.runs.responses.evaluation.responses import Responses, rows_of


@pytest.fixture
def chunks(make_prompt):
    a, b, c = (make_prompt(id=name) for name in "abc")
    return [
        Chunk(prompts=[a, b]),
        Chunk(prompts=[c]),
        Chunk(prompts=[a, b], first=[0, 0], together=2),
    ]


@pytest.fixture
def responses(chunks, tmp_path):
    return Responses(tmp_path / "responses.jsonl", chunks)


def lines_of(chunk):
    return [{"task": x.task, "id": x.id, "sample": sample} for x, sample in chunk.rows()]


def test_all_chunks_are_finished_once_their_lines_are_written(responses, chunks):
    assert responses.finished() == 0
    for i, chunk in enumerate(chunks):
        responses.append(lines_of(chunk))
        assert responses.finished() == i + 1
    assert [row for row, _ in responses.rows()] == [x for chunk in chunks for x in lines_of(chunk)]
    assert [row["sample"] for row, _ in responses.rows()] == [None] * 3 + [0, 1, 0, 1]


@pytest.mark.parametrize("torn", [b"", b'{"task": "t", "id"'])
@pytest.mark.parametrize(("lines", "done", "left"), [(1, 0, 0), (2, 1, 2), (3, 2, 3), (6, 2, 3)])
def test_an_incomplete_chunk_is_removed(responses, chunks, lines, done, left, torn):
    rows = [row for chunk in chunks for row in lines_of(chunk)]
    responses.append(rows[:lines])
    with responses.path.open("ab") as file:
        file.write(torn)
    assert responses.finished() == done
    content = "".join(json.dumps(row) + "\n" for row in rows[:left])
    assert responses.path.read_text() == content


@pytest.mark.parametrize("key", ["task", "id", "sample"])
def test_lines_of_another_evaluation_are_refused_and_kept(responses, chunks, key):
    rows = lines_of(chunks[0])
    rows[1] = rows[1] | {key: 7}
    responses.append(rows)
    before = responses.path.read_bytes()
    with pytest.raises(InputError, match="holds responses of another evaluation"):
        responses.finished()
    assert responses.path.read_bytes() == before


@pytest.mark.parametrize("line", ["[]", "{}", "no json"])
def test_what_is_no_response_is_refused(responses, line):
    responses.path.write_text(line + "\n")
    with pytest.raises(InputError, match="has a line that is not a response"):
        responses.finished()


def test_a_full_disk_is_named(responses):
    responses.path.mkdir()
    with pytest.raises(RunError, match=r"Cannot write .*: Is a directory\."):
        responses.append([{}])


@pytest.mark.slow
def test_a_line_has_all_that_is_known_of_a_response(subject):
    evaluation = replace(subject.evaluation, samples=2)
    greedy, *_, drawn = evaluation.answered(subject.state)
    rows = rows_of(evaluation, greedy)
    assert len(rows) == len(greedy.chunk.prompts) == 8
    for row, episode in zip(rows, greedy.episodes, strict=True):
        prompt = episode.prompt
        assert (row["id"], row["question"], row["answer"]) == (
            prompt.id,
            prompt.question,
            prompt.answer,
        )
        assert row["response"] == episode.response
        assert (row["sample"], row["seed"], row["valid"]) == (None, None, True)
        assert row["grades"].keys() == {"correct", "format", "capital"}
        assert row["correct"] == (row["grades"]["capital"] >= 1)
        assert row["finish"] == ("length" if row["tokens"] == 8 else "stop")
    rows = rows_of(evaluation, drawn)
    assert [(row["id"], row["sample"]) for row in rows] == [
        (prompt.id, sample) for prompt, sample in drawn.chunk.rows()
    ]
    assert {row["seed"] for row in rows} == {0}
    mask = np.asarray(drawn.trajectories.response_mask_BT)
    assert [row["tokens"] for row in rows] == mask.sum(axis=1).tolist()
    assert json.loads(json.dumps(rows)) == rows


@pytest.mark.slow
def test_a_response_that_could_not_be_graded_has_no_grades(subject):
    """Its grades are zeros in the arrays, which would look like wrong answers."""

    class Broken:
        weight = 1.0

        def __call__(self, episodes):
            return [float("nan") if i == 1 else 1.0 for i in range(len(episodes))]

    reward = Weighted(terms={"capital": Broken()})
    phases = replace(subject.evaluation.phases, reward=reward)
    evaluation = replace(subject.evaluation, phases=phases)
    rows = rows_of(evaluation, next(evaluation.answered(subject.state)))
    assert [row["grades"]["capital"] for row in rows[:3]] == [1.0, None, 1.0]
    assert [row["valid"] for row in rows[:3]] == [True, False, True]
    assert [row["correct"] for row in rows[:3]] == [True, False, True]


@pytest.mark.slow
def test_a_term_that_does_not_apply_has_no_grade_and_decides_nothing(subject):
    class Some:
        weight = 1.0

        def __init__(self, row):
            self.row = row

        def __call__(self, episodes):
            return [None if i == self.row else 1.0 for i in range(len(episodes))]

    reward = Weighted(terms={"capital": Some(0), "other": Some(1)})
    evaluation = replace(
        subject.evaluation, phases=replace(subject.evaluation.phases, reward=reward)
    )
    rows = rows_of(evaluation, next(evaluation.answered(subject.state)))
    assert [row["grades"] for row in rows[:3]] == [
        {"capital": None, "other": 1.0},
        {"capital": 1.0, "other": None},
        {"capital": 1.0, "other": 1.0},
    ]
    assert [row["valid"] for row in rows[:3]] == [False, True, True]
    assert [row["correct"] for row in rows[:3]] == [False, True, True]
