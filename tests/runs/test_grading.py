"""Tests turns as values of JSON."""

import json
from dataclasses import dataclass, replace
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Episode, Finish, Prompt, Turn
from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.reward.weighted import Weighted
from rl4p.runs import grading
from rl4p.runs.build import build
from rl4p.runs.grading import (
    STATUS,
    Grades,
    RecordSamples,
    graded,
    rows_of_turns,
    samples_of,
    text_reward,
    turns_of,
)
from rl4p.runs.record import Record
from rl4p.runs.sample import Sample, check_turn

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


def test_turns_have_calls_and_weights_and_survive_json(make_prompt):
    turns = (
        Turn(
            text=CALL + "<tool_call>no</tool_call>",
            tokens=3,
            messages=({"role": "tool", "content": "2"},),
            reward=0.5,
            metrics={"tool_calls": 2.0},
            state="begun",
            sampling_seconds=0.25,
            environment_seconds=1.5,
        ),
        Turn(text="2", tokens=2, files={"a.py": 7}),
    )
    episode = Episode(prompt=make_prompt(), response="2", turns=turns)
    rows = rows_of_turns(episode, np.array([4, 5, 5, 6, 6]))
    assert rows is not None
    assert rows[0]["calls"][0] == {"name": "add", "arguments": {"a": 1}}
    assert rows[0]["calls"][1]["malformed"].startswith("the call is no JSON")
    assert [row["versions"] for row in rows] == [[4, 5], [6]]
    rows = json.loads(json.dumps(rows))
    for row in rows:
        check_turn(row)
    again = turns_of(rows)
    assert again == turns
    assert again[0].environment_seconds == 1.5


def test_a_single_response_has_no_turns(make_prompt):
    assert rows_of_turns(Episode(prompt=make_prompt(), response="2"), np.zeros(0)) is None


GRADES = {"?": float("nan"), "-": None}


@dataclass(frozen=True, kw_only=True)
class Length:
    """The length of a response; some texts have no grade, or do not fit the term."""

    weight: float = 2.0

    def __call__(self, episodes):
        return [GRADES.get(each.response, float(len(each.response))) for each in episodes]


@dataclass(frozen=True, kw_only=True)
class Size:
    """The number of samples that a call sees of a prompt."""

    weight: float = 0.0
    whole_groups: bool = True

    def __call__(self, groups):
        return [[float(len(group))] * len(group) for group in groups]


def grade(reward, *responses):
    """Returns the grades of responses, each to the prompt that its last letter names."""
    prompts = [
        Prompt(id=text[-1], question=text[-1], answer="", task="t", tokens=()) for text in responses
    ]
    samples = [Sample(prompt=text[-1], response=text) for text in responses]
    found = graded(samples, prompts, reward)
    return [Grades(reward=x.reward, terms=x.terms, valid=x.valid) for x in found]


def test_an_invalid_response_has_no_total_and_others_do():
    reward = Weighted(terms={"length": Length(), "size": Size()}, max_invalid=1.0)
    assert grade(reward, "ab", "?", "-") == [
        Grades(reward=4.0, terms={"length": 2.0, "size": 1.0}, valid=True),
        Grades(reward=None, terms={"length": None, "size": None}, valid=False),
        Grades(reward=0.0, terms={"length": None, "size": 1.0}, valid=True),
    ]


def test_parts_keep_prompts_whole_and_the_order_of_the_rows(monkeypatch):
    monkeypatch.setattr(grading, "AT_A_TIME", 3)
    calls = []

    @dataclass(frozen=True, kw_only=True)
    class Counted(Size):
        def __call__(self, groups):
            calls.append([len(group) for group in groups])
            return super().__call__(groups)

    reward = Weighted(terms={"length": Length(), "size": Counted()})
    found = grade(reward, "xa", "xxb", "xxxa", "c", "xxxxa", "xxxxxd", "xa")
    assert [each.terms["length"] for each in found] == [2, 3, 4, 1, 5, 6, 2]
    assert [each.terms["size"] for each in found] == [4, 1, 4, 1, 4, 1, 4]
    assert calls == [[4], [1, 1, 1]]


def test_the_share_of_invalid_responses_is_that_of_the_reward():
    with pytest.raises(RunError, match="100% of the samples could not be graded"):
        grade(Weighted(terms={"length": Length()}), "?")


def test_no_responses_have_no_grades():
    assert grade(Weighted(terms={"length": Length()})) == []


def test_a_reward_that_needs_arrays_is_refused():
    reward = Weighted(terms={})
    assert text_reward(reward) is reward
    with pytest.raises(InputError, match=r"object cannot .* reward=router, or grade=false\.$"):
        text_reward(object(), otherwise=", or grade=false")


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


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_the_hook_writes_the_first_samples_and_mirrors_the_file(trained, tmp_path):
    tokenizer, info = trained
    record, mirrored = Record(tmp_path), []
    tracked = SimpleNamespace(artifact=mirrored.append)
    RecordSamples(every=1, count=6, record=record, tracked=tracked, tokenizer=tokenizer)(info)
    rows = record.samples()
    assert [Sample.from_dict(row) for row in rows] == samples_of(info, 6, tokenizer)
    assert [row["step"] for row in rows] == [1] * 6
    assert mirrored == [record.samples_file]


@pytest.mark.mixed_dtypes
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


@pytest.mark.mixed_dtypes
def test_a_term_that_does_not_apply_is_null(trained):
    tokenizer, info = trained
    terms = info.rewards.terms | {"moves": np.float32([np.nan, 1, *[0] * 30])}
    info = replace(info, rewards=replace(info.rewards, terms=terms))
    rows = lines(info, 3, tokenizer)
    assert [row["terms"]["moves"] for row in rows] == [None, 1.0, 0.0]
    assert rows[0]["terms"]["correct"] is not None


@pytest.mark.mixed_dtypes
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


@pytest.mark.mixed_dtypes
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


@pytest.mark.mixed_dtypes
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


@pytest.mark.mixed_dtypes
def test_a_grade_that_failed_is_marked(trained):
    _, info = trained
    valid_B = np.array([False] + [True] * 31)
    info = replace(info, rewards=replace(info.rewards, valid_B=valid_B))
    rows = lines(info, 2, None)
    assert [row["valid"] for row in rows] == [False, True]
    assert ["reward" in row for row in rows] == [False, True]
    assert set(rows[0]["terms"].values()) == {None}


@pytest.mark.mixed_dtypes
def test_a_loop_of_ones_own_need_not_pass_advantages_on(trained):
    tokenizer, info = trained
    (row,) = lines(replace(info, advantages_BT=None, loss_mask_BT=None), 1, tokenizer)
    assert "advantage" not in row
    assert "mask" not in row["tokens"]


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_the_file_stays_small(trained):
    """About 25 bytes for each token: its id, its text, its log-probability and its mask."""
    tokenizer, info = trained
    for row, without in zip(lines(info, 32, tokenizer), lines(info, 32, None), strict=True):
        assert len(json.dumps(row["tokens"])) < 120 + 30 * row["length"]
        assert "tokens" not in without
        assert len(json.dumps(without)) < 400
