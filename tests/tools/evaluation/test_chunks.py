"""Tests that an incomplete chunk is removed, and that other responses are refused."""

import json
from dataclasses import replace

import pytest

from rl4p.base.errors import InputError
from rl4p.loop.evaluation import PromptChunk
from rl4p.runs.sample import Sample
from rl4p.tools.evaluation.job import REQUEST, RESPONSES, finished, responses_in


@pytest.fixture
def chunks(make_prompt):
    a, b, c = (make_prompt(id=name) for name in "abc")
    return [
        PromptChunk(prompts=[a, b]),
        PromptChunk(prompts=[c]),
        PromptChunk(prompts=[a, b], first=[0, 0], together=2),
    ]


@pytest.fixture
def saved(tmp_path):
    """Returns a function that opens the file of an evaluation with samples and a torn line."""

    def write(samples, torn=b""):
        (tmp_path / REQUEST).write_text('{"evaluated": {}, "prompts_sha256": {}}')
        rows = "".join(json.dumps(sample.to_dict()) + "\n" for sample in samples)
        (tmp_path / RESPONSES).write_bytes(rows.encode() + torn)
        return responses_in(tmp_path)

    return write


def samples_of(*chunks):
    return [
        Sample.response_to(prompt, "a", sample=sample)
        for chunk in chunks
        for prompt, sample in chunk.rows()
    ]


def test_all_chunks_are_finished_once_their_samples_are_written(saved, chunks):
    with saved([]) as responses:
        assert finished(responses, chunks) == 0
        for i, chunk in enumerate(chunks):
            responses.append(samples_of(chunk))
            assert finished(responses, chunks) == i + 1
    with saved(samples_of(*chunks, chunks[0])) as responses:
        assert finished(responses, chunks) == 3
        assert [sample.sample for sample in responses.samples] == [None] * 3 + [0, 1, 0, 1]
        assert responses.path.read_bytes().count(b"\n") == 7


@pytest.mark.parametrize("torn", [b"", b'{"task": "t", "id"'])
@pytest.mark.parametrize(("lines", "done", "left"), [(1, 0, 0), (2, 1, 2), (3, 2, 3), (6, 2, 3)])
def test_an_incomplete_chunk_is_removed(saved, chunks, lines, done, left, torn):
    samples = samples_of(*chunks)
    with saved(samples[:lines], torn) as responses:
        assert finished(responses, chunks) == done
        assert responses.samples == samples[:left]
    rows = [json.loads(line) for line in responses.path.read_text().splitlines()]
    assert rows == [sample.to_dict() for sample in samples[:left]]


@pytest.mark.parametrize("change", [{"task": "x"}, {"id": "x"}, {"sample": 7}])
def test_responses_of_another_evaluation_are_refused_and_kept(saved, chunks, change):
    first, second = samples_of(chunks[0])
    with saved([first, replace(second, **change)]) as responses:
        before = responses.path.read_bytes()
        with pytest.raises(InputError, match="holds responses of another evaluation"):
            finished(responses, chunks)
    assert responses.path.read_bytes() == before


def test_a_folder_with_files_of_something_else_is_left_alone(tmp_path):
    (tmp_path / REQUEST).write_text('{"mine": 1}')
    with pytest.raises(InputError, match="holds other files"), responses_in(tmp_path):
        pass
    (tmp_path / REQUEST).unlink()
    (tmp_path / RESPONSES).write_text("")
    with responses_in(tmp_path):  # a kill before the first response
        pass
    (tmp_path / RESPONSES).write_text("mine\n")
    with pytest.raises(InputError, match="holds other files"), responses_in(tmp_path):
        pass
    assert (tmp_path / RESPONSES).read_text() == "mine\n"
