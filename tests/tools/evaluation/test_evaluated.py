"""Tests that an evaluation has the parameters of the checkpoint, and the samples of its chunks."""

import json
from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.command.evaluation import read
from rl4p.reward.weighted import Weighted
from rl4p.tools.evaluation.evaluated import (
    build_evaluated,
    identity_of,
    samples_of_chunk,
)
from tests.support.runs import checkpoint


def parameters(evaluated):
    flat, _ = jax.tree.flatten_with_path(evaluated.state.params)
    return {f"['params']{jax.tree_util.keystr(path)}": np.asarray(x) for path, x in flat}


@pytest.fixture
def built(tmp_path):
    """Returns a function that builds the evaluation of a command line."""
    return lambda *words: build_evaluated(*reversed(read([*words, f"out={tmp_path}"])))


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("step=1",), ("average=true", "evaluation.samples=0")])
def test_the_parameters_are_those_of_the_checkpoint(run, built, words):
    """An average is not taken twice: the state has no other one than its parameters."""
    evaluated = built(f"run={run}", *words)
    step, average = 1 if "step=1" in words else 3, "average=true" in words
    saved, found = checkpoint(run, step)[0], parameters(evaluated)
    assert found
    for name, value in found.items():
        name = name.replace("params", "average", 1) if average else name
        np.testing.assert_array_equal(value, saved[name], strict=True)
    assert evaluated.evaluation.of_average is False
    assert int(evaluated.state.step) == step
    assert evaluated.source == {"run": str(run), "step": step, "average": average}


def test_a_model_is_its_own_source(built):
    evaluated = built("model=tiny", "evaluation.prompts=2")
    assert evaluated.source["model"].endswith("rl4p/model/tiny")
    assert len(evaluated.evaluation.prompts) == 2
    assert int(evaluated.state.step) == 0
    with pytest.raises(InputError, match="is more than the 2048 positions"):
        built("model=scratch", "max_response_tokens=9999")


@pytest.mark.slow
def test_prompts_that_are_too_long_are_counted(run, built):
    with pytest.raises(InputError, match="max_prompt_tokens=10 is too small"):  # of `long`
        built(f"run={run}", "max_prompt_tokens=10", "evaluation.samples=0")
    assert built(f"run={run}", "data.digits=1", "data.train_size=9").dropped == 0


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


@dataclass(frozen=True, kw_only=True)
class Without:
    """A term that has no grade for one row."""

    row: int
    grade: float | None
    weight: float = 1.0

    def __call__(self, episodes):
        return [self.grade if i == self.row else 1.0 for i in range(len(episodes))]


def graded_by(evaluated, **terms):
    """Returns the lines of the first chunk, graded by some terms."""
    phases = replace(evaluated.evaluation.phases, reward=Weighted(terms=terms))
    evaluation = replace(evaluated.evaluation, phases=phases)
    return rows_of(evaluation, next(evaluation.answered(evaluated.state)))[:3]


@pytest.mark.slow
def test_a_response_that_could_not_be_graded_has_no_grades(evaluated):
    """Its grades are zeros in the arrays, which would look like wrong answers."""
    rows = graded_by(evaluated, capital=Without(row=1, grade=float("nan")))
    assert [row["terms"]["capital"] for row in rows] == [1.0, None, 1.0]
    assert [row["valid"] for row in rows] == [True, False, True]
    assert [row.get("reward") for row in rows] == [1.0, None, 1.0]
    assert [row.get("correct") for row in rows] == [True, None, True]


@pytest.mark.slow
def test_a_term_that_does_not_apply_has_no_grade_and_decides_nothing(evaluated):
    terms = {"capital": Without(row=0, grade=None), "other": Without(row=1, grade=None)}
    rows = graded_by(evaluated, **terms)
    assert [tuple(row["terms"].values()) for row in rows] == [(None, 1.0), (1.0, None), (1.0, 1.0)]
    assert [row["valid"] for row in rows] == [True, True, True]
    assert [row.get("correct") for row in rows] == [None, True, True]
