"""Tests environments of verifiers, where the library is installed."""

import copy
import dataclasses
from pathlib import Path

import numpy as np
import pytest

import rl4p.rollout.agents.verifiers
from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.data.environment import EnvironmentQuestions
from rl4p.data.prompts import encode_prompts
from rl4p.loop.checks import check_trajectories
from rl4p.rollout.agents.verifiers import Verifiers
from tests import support
from tests.support.episodes import ENDS, TEMPLATE, rollout

TASKS = "verifiers_tasks"  # in tests/support: verifiers takes no names with dots


@pytest.fixture(scope="module")
def ending(policy):
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.chat_template = TEMPLATE
    return dataclasses.replace(policy, end_ids=ENDS, tokenizer=tokenizer)


@pytest.fixture
def make(monkeypatch):
    pytest.importorskip("verifiers.v1")
    monkeypatch.syspath_prepend(Path(support.__file__).parent)

    def make(taskset=None, *, env=None, **options):
        taskset = {"id": TASKS, **(taskset or {})}
        return Verifiers(env={"taskset": taskset, **(env or {})}, **options)

    return make


def test_what_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(rl4p.rollout.agents.verifiers, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="verifiers is not installed: run pip install verifiers"):
        Verifiers(env={"taskset": {"id": "any"}})


WORDS = ("rollout=agent", "data=environment", "+agent@rollout.agent=verifiers")


def test_a_file_of_others_names_no_code(tmp_path):
    compose([*WORDS, "rollout.agent.env.taskset.id=my_tasks"])
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment/theirs.yaml").write_text(
        "# @package _global_\nrollout: {agent: {env: {taskset: {id: their_tasks}}}}\n"
    )
    theirs = [*WORDS, "experiment=theirs"]
    with pytest.raises(InputError, match="their_tasks is an option of a library, which may name"):
        compose(theirs, config_dir=str(tmp_path))
    compose([*theirs, "allow=their_tasks"], config_dir=str(tmp_path))


def test_the_tasks_are_the_questions(make):
    train = [*make().questions()]
    assert [row.question for row in train] == [f"{i} + 1?" for i in range(6)]
    assert [row.answer for row in train] == [str(i + 1) for i in range(6)]
    assert train == [*make().questions()]
    assert len({row.id for row in train}) == 6
    assert make().held_out_questions() is None
    held_out = [*make(held_out_taskset={"split": "test", "size": 2}).held_out_questions()]
    assert [row.question for row in held_out] == ["100 + 1?", "101 + 1?"]


def played(sample, policy, agent, questions, **options):
    prompts, _ = encode_prompts(
        questions, policy.tokenizer, system_prompt=None, max_prompt_tokens=64
    )
    return sample(rollout(agent, **options), prompts=prompts, group_size=2)


def test_an_episode_is_graded_by_its_task_and_trained_as_it_was_sampled(
    make, sample, ending, requests
):
    agent = make()
    questions = EnvironmentQuestions(environment=agent, held_out_size=1).train()
    trajectories, episodes = played(sample, ending, agent, questions)
    check_trajectories(trajectories)
    assert {episode.failure for episode in episodes} == {None}
    assert {len(episode.turns) for episode in episodes} == {2}
    rewards = []
    for episode in episodes:
        last = episode.turns[-1]
        numbers = dict(last.metrics)
        length, letter = numbers.pop("reward/length"), numbers.pop("reward/letter")
        assert numbers == {"turns": 2.0}
        assert last.reward == pytest.approx(0.5 * length + 2 * letter)
        rewards.append(last.reward)
    assert len(set(rewards)) > 1
    drawn = sorted(tuple(tokens) for _, tokens in requests)
    tokens, mask = (np.asarray(x) for x in (trajectories.tokens_BT, trajectories.response_mask_BT))
    trained = [tuple(row[on].tolist()) for row, on in zip(tokens, mask, strict=True)]
    assert sorted(map(len, trained)) == sorted(episode.tokens for episode in episodes)
    assert sum(map(len, trained)) == sum(map(len, drawn))


def test_an_error_of_a_reward_makes_the_sample_invalid(make, sample, ending):
    questions = [*make({"size": 14}).questions()][11:13]
    _, episodes = played(sample, ending, make(), questions)
    failures = [episode.failure for episode in episodes]
    assert failures[:2] == [None, None]
    assert all("an unlucky number" in failure for failure in failures[2:])


def test_a_row_of_other_data_is_no_task(make, sample, prompts):
    _, episodes = sample(rollout(make(), max_failed=1.0), prompts=prompts, group_size=1)
    assert all("choose data=environment" in episode.failure for episode in episodes)


@pytest.mark.parametrize(
    ("taskset", "env", "sentence"),
    [
        ({"id": "no_such_tasks"}, {}, "no_such_tasks"),
        ({"sizes": 3}, {}, "sizes"),
        ({}, {"retries": {"max_retries": 2}}, "retries would train"),
        ({}, {"agent": {"retries": {"max_retries": 2}}}, "retries would train"),
        ({}, {"id": "user_sim"}, "the roles are .*, and one role is expected"),
    ],
)
def test_what_verifiers_cannot_do_is_refused(make, taskset, env, sentence):
    with pytest.raises(InputError, match=f"^verifiers refuses rollout.agent.env: .*{sentence}"):
        make(taskset, env=env).config({})
