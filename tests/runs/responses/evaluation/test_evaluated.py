"""Tests that an evaluation has the parameters of the checkpoint, and the samples of its chunks."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

from rl4p.configuration.evaluation import read
from rl4p.errors import InputError
from rl4p.reward.weighted import Weighted
from rl4p.runs.responses.evaluation.evaluated import (
    build_evaluated,
    identity_of,
    samples_of_chunk,
)
from tests.runs.conftest import checkpoint


def parameters(evaluated):
    flat, _ = jax.tree.flatten_with_path(evaluated.state.params)
    return {f"['params']{jax.tree_util.keystr(path)}": np.asarray(x) for path, x in flat}


@pytest.mark.slow
@pytest.mark.parametrize("step", [None, 1])
def test_the_parameters_are_those_of_the_checkpoint(run, tmp_path, step):
    words = [] if step is None else [f"step={step}"]
    request, config = read([f"run={run}", f"out={tmp_path}", *words])
    evaluated = build_evaluated(config, request)
    saved, _ = checkpoint(run, step)
    found = parameters(evaluated)
    assert found
    for name, value in found.items():
        np.testing.assert_array_equal(value, saved[name], strict=True)
    assert int(evaluated.state.step) == (step or 3)
    assert evaluated.source == {"run": str(run), "step": step or 3, "average": False}


@pytest.mark.slow
def test_the_average_is_not_taken_twice(run, tmp_path):
    """The state of an evaluation has no other average than the one in its parameters."""
    words = ["average=true", "evaluation.samples=0"]
    request, config = read([f"run={run}", f"out={tmp_path}", *words])
    evaluated = build_evaluated(config, request)
    assert evaluated.evaluation.of_average is False
    saved, _ = checkpoint(run)
    for name, value in parameters(evaluated).items():
        np.testing.assert_array_equal(value, saved[name.replace("params", "average", 1)])


def test_a_model_is_its_own_source(tmp_path):
    request, config = read(["model=tiny", f"out={tmp_path}", "evaluation.prompts=2"])
    evaluated = build_evaluated(config, request)
    assert evaluated.source["model"].endswith("rl4p/model/tiny")
    assert len(evaluated.evaluation.prompts) == 2
    assert int(evaluated.state.step) == 0
    request, config = read(["model=scratch", "max_response_tokens=9999", f"out={tmp_path}"])
    with pytest.raises(InputError, match="is more than the 2048 positions"):
        build_evaluated(config, request)


@pytest.mark.slow
def test_prompts_that_are_too_long_are_counted(run, tmp_path):
    words = ["max_prompt_tokens=10", "evaluation.samples=0"]
    request, config = read([f"run={run}", f"out={tmp_path}", *words])
    with pytest.raises(InputError, match="max_prompt_tokens=10 is too small"):  # of `long`
        build_evaluated(config, request)
    request, config = read([f"run={run}", f"out={tmp_path}", "data.digits=1", "data.train_size=9"])
    assert build_evaluated(config, request).dropped == 0


def test_the_identity_is_that_of_the_trackers(tmp_path):
    assert identity_of(tmp_path) is None
    (tmp_path / "tracker.json").write_text('{"rl4p.run": "abc"}')
    assert identity_of(tmp_path) == "abc"


def rows_of(evaluation, answered):
    """Returns the lines of a chunk."""
    return [sample.to_dict() for sample in samples_of_chunk(evaluation, answered)]


@pytest.mark.slow
def test_a_line_has_all_that_is_known_of_a_response(evaluated):
    evaluation = replace(evaluated.evaluation, samples=2)
    greedy, *_, drawn = evaluation.answered(evaluated.state)
    rows = rows_of(evaluation, greedy)
    assert len(rows) == len(greedy.chunk.prompts) == 8
    for row, episode in zip(rows, greedy.episodes, strict=True):
        prompt = episode.prompt
        assert (row["id"], row["prompt"], row["answer"]) == (
            prompt.id,
            prompt.question,
            prompt.answer,
        )
        assert row["response"] == episode.response
        assert row.keys() & {"sample", "seed", "valid"} == {"valid"}
        assert row["terms"].keys() == {"correct", "format", "capital"}
        assert row["correct"] == (row["terms"]["capital"] >= 1)
        assert row["status"] == ("truncated" if row["length"] == 8 else "completed")
    rows = rows_of(evaluation, drawn)
    assert [(row["id"], row["sample"]) for row in rows] == [
        (prompt.id, sample) for prompt, sample in drawn.chunk.rows()
    ]
    assert {row["seed"] for row in rows} == {0}
    mask = np.asarray(drawn.trajectories.response_mask_BT)
    assert [row["length"] for row in rows] == mask.sum(axis=1).tolist()
    assert json.loads(json.dumps(rows)) == rows


@pytest.mark.slow
def test_a_response_that_could_not_be_graded_has_no_grades(evaluated):
    """Its grades are zeros in the arrays, which would look like wrong answers."""

    class Broken:
        weight = 1.0

        def __call__(self, episodes):
            return [float("nan") if i == 1 else 1.0 for i in range(len(episodes))]

    reward = Weighted(terms={"capital": Broken()})
    phases = replace(evaluated.evaluation.phases, reward=reward)
    evaluation = replace(evaluated.evaluation, phases=phases)
    rows = rows_of(evaluation, next(evaluation.answered(evaluated.state)))
    assert [row["terms"]["capital"] for row in rows[:3]] == [1.0, None, 1.0]
    assert [row["valid"] for row in rows[:3]] == [True, False, True]
    assert [row.get("reward") for row in rows[:3]] == [1.0, None, 1.0]
    assert [row.get("correct") for row in rows[:3]] == [True, None, True]


@pytest.mark.slow
def test_a_term_that_does_not_apply_has_no_grade_and_decides_nothing(evaluated):
    class Some:
        weight = 1.0

        def __init__(self, row):
            self.row = row

        def __call__(self, episodes):
            return [None if i == self.row else 1.0 for i in range(len(episodes))]

    reward = Weighted(terms={"capital": Some(0), "other": Some(1)})
    evaluation = replace(
        evaluated.evaluation, phases=replace(evaluated.evaluation.phases, reward=reward)
    )
    rows = rows_of(evaluation, next(evaluation.answered(evaluated.state)))
    assert [row["terms"] for row in rows[:3]] == [
        {"capital": None, "other": 1.0},
        {"capital": 1.0, "other": None},
        {"capital": 1.0, "other": 1.0},
    ]
    assert [row["valid"] for row in rows[:3]] == [True, True, True]
    assert [row.get("correct") for row in rows[:3]] == [None, True, True]
