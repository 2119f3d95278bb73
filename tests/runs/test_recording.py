"""Tests the lines of samples.jsonl against the arrays of a step."""

import json
from dataclasses import replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import Finish
from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.runs.build import build
from rl4p.runs.grading import STATUS
from rl4p.runs.record import Record
from rl4p.runs.recording import RecordSamples, samples_of
from rl4p.runs.sample import Sample

pytestmark = pytest.mark.mixed_dtypes

# The policy of the package, whose responses have about as many tokens as this limit.
SMALL = (
    *("data.train_size=20", "data.held_out_size=4", "steps=1", "prompts_per_step=8"),
    *("group_size=4", "max_response_tokens=33", "tracker=none"),
    *("advantage.mask_truncated=true", "update.microbatch_widths=1"),
)


@pytest.fixture(scope="module")
def trained():
    """Returns the tokenizer and the only step of a run."""
    experiment = build(compose(SMALL))
    (info,) = train(experiment.loop, experiment.state)
    assert info.metrics["update/grad_norm"] > 0
    return experiment.loop.policy.tokenizer, info


def lines(info, count, tokenizer):
    """Returns the lines of the file."""
    return [sample.to_dict() for sample in samples_of(info, count, tokenizer)]


def test_the_hook_writes_the_first_samples_and_mirrors_the_file(trained, tmp_path):
    tokenizer, info = trained
    record, mirrored = Record(tmp_path), []
    tracked = SimpleNamespace(artifact=mirrored.append)
    RecordSamples(every=1, count=6, record=record, tracked=tracked, tokenizer=tokenizer)(info)
    rows = record.samples()
    assert [Sample.from_dict(row) for row in rows] == samples_of(info, 6, tokenizer)
    assert [row["step"] for row in rows] == [1] * 6
    assert mirrored == [record.samples_file]


def test_a_line_has_the_text_and_the_grades(trained):
    tokenizer, info = trained
    rows = lines(info, 6, tokenizer)  # of two prompts
    assert [row["sample"] for row in rows] == [0, 1, 2, 3, 0, 1]
    assert len({row["answer"] for row in rows}) == 2
    for b, row in enumerate(rows):
        prompt = info.episodes[b].prompt
        assert row["response"] == info.episodes[b].response
        assert (row["prompt"], row["answer"]) == (prompt.question, prompt.answer)
        assert (row["id"], row["task"]) == (prompt.id, "arithmetic")
        assert row["reward"] == float(info.rewards.total_B[b])
        assert row["terms"].keys() == {"correct", "format"}
        assert row["terms"]["correct"] == float(info.rewards.terms["correct"][b])
        assert row["valid"] is True
        assert row["status"] == STATUS[Finish(int(info.trajectories.finish_B[b]))]


def test_a_term_that_does_not_apply_is_null(trained):
    tokenizer, info = trained
    terms = info.rewards.terms | {"moves": np.float32([np.nan, 1, *[0] * 30])}
    info = replace(info, rewards=replace(info.rewards, terms=terms))
    rows = lines(info, 3, tokenizer)
    assert [row["terms"]["moves"] for row in rows] == [None, 1.0, 0.0]
    assert rows[0]["terms"]["correct"] is not None


def test_tokens_are_those_of_the_arrays(trained):
    tokenizer, info = trained
    trajectories = info.trajectories
    for b, row in enumerate(lines(info, 32, tokenizer)):
        mask_T = np.asarray(trajectories.response_mask_BT[b])
        tokens = row["tokens"]
        assert row["length"] == mask_T.sum() > 0
        assert tokens["ids"] == np.asarray(trajectories.tokens_BT[b])[mask_T].tolist()
        logprobs = np.asarray(trajectories.behaviour_logprobs_BT[b])[mask_T]
        np.testing.assert_allclose(tokens["logprobs"], logprobs, atol=5e-5)
        assert len(tokens["texts"]) == row["length"]
        ended = "<|end|>" if row["status"] == "completed" else ""
        assert "".join(tokens["texts"]).endswith(ended)
        assert tokens["prompt"] == f"<|user|>{row['prompt']}<|end|><|assistant|>"


def test_the_loss_mask_and_the_advantage_are_those_of_the_update(trained):
    """With `mask_truncated`, truncated responses are not in the loss."""
    tokenizer, info = trained
    rows = lines(info, 32, tokenizer)
    assert {row["status"] for row in rows} == {"completed", "truncated"}
    advantages = []
    for b, row in enumerate(rows):
        mask_T = np.asarray(info.trajectories.response_mask_BT[b])
        in_loss = np.asarray(info.loss_mask_BT[b])[mask_T]
        assert row["tokens"]["mask"] == "".join(map(str, in_loss.astype(int)))
        assert in_loss.all() == (row["status"] == "completed")
        assert "advantages" not in row["tokens"]  # GRPO gives all tokens of a sample the same
        if row["status"] == "truncated":
            assert "advantage" not in row
        else:
            expected = np.asarray(info.advantages_BT[b])[mask_T][0]
            assert row["advantage"] == pytest.approx(float(expected), abs=1e-4)
            advantages.append(row["advantage"])
    assert min(advantages) < 0 < max(advantages)


def test_advantages_that_differ_between_tokens_are_listed(trained):
    tokenizer, info = trained
    varied = jnp.arange(info.advantages_BT.size, dtype=jnp.float32).reshape(
        info.advantages_BT.shape
    )
    mask_BT = info.trajectories.response_mask_BT
    info = replace(info, advantages_BT=varied, loss_mask_BT=mask_BT)
    (row,) = lines(info, 1, tokenizer)
    expected = np.asarray(varied[0])[np.asarray(mask_BT[0])]
    assert row["tokens"]["advantages"] == expected.tolist()
    assert row["advantage"] == pytest.approx(expected.mean())


def test_a_grade_that_failed_is_marked(trained):
    _, info = trained
    valid_B = np.array([False] + [True] * 31)
    info = replace(info, rewards=replace(info.rewards, valid_B=valid_B))
    rows = lines(info, 2, None)
    assert [row["valid"] for row in rows] == [False, True]
    assert ["reward" in row for row in rows] == [False, True]
    assert set(rows[0]["terms"].values()) == {None}


def test_a_loop_of_ones_own_need_not_pass_advantages_on(trained):
    tokenizer, info = trained
    (row,) = lines(replace(info, advantages_BT=None, loss_mask_BT=None), 1, tokenizer)
    assert "advantage" not in row
    assert "mask" not in row["tokens"]


def test_the_file_stays_small(trained):
    """About 25 bytes for each token: its id, its text, its log-probability and its mask."""
    tokenizer, info = trained
    for row, without in zip(lines(info, 32, tokenizer), lines(info, 32, None), strict=True):
        assert len(json.dumps(row["tokens"])) < 120 + 30 * row["length"]
        assert "tokens" not in without
        assert len(json.dumps(without)) < 400
