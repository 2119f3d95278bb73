"""Tests training on episodes of several turns: advantages, collectors, evaluation and samples."""

import json
from dataclasses import replace

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.configuration import compose
from rl4p.loop.loop import train
from rl4p.runs.build import build
from rl4p.runs.grading import samples_of
from rl4p.runs.sample import Sample
from tests.support.openenv_server import OpenEnvServer
from tests.support.turns import assert_same

pytestmark = pytest.mark.mixed_dtypes

SMALL = (
    *("data.train_size=20", "data.held_out_size=4", "steps=2", "prompts_per_step=4"),
    *("group_size=4", "max_response_tokens=160", "tracker=none", "update.microbatch_widths=1"),
    *("rollout=environment", "+environment@rollout.environment=gymnasium"),
    "rollout.environment.factory._target_=tests.support.worlds.Letters",
    *("rollout.max_turns=3", "rollout.max_turn_tokens=48", "trusted_targets=tests"),
    *("reward=episode", "evaluation.term=episode_reward"),
)


def trained(*options, small=SMALL):
    experiment = build(compose((*small, *options)))
    infos = []
    for info in train(experiment.loop, experiment.state):
        infos.append(info)
        assert info.metrics["update/grad_norm"] > 0
    experiment.loop.collector.close()
    return experiment, infos


@pytest.mark.slow
def test_an_openenv_server_with_two_places_trains():
    small = [x for x in SMALL if "environment.factory" not in x and "+environment@" not in x]
    resets = []
    for _ in range(2):
        with OpenEnvServer(sessions=2, fault="words") as server:
            _, infos = trained(
                *("+environment@rollout.environment=openenv", "rollout.concurrency=2"),
                "rollout.environment.action_field=guess",
                f"rollout.environment.url={server.url}",
                small=small,
            )
        assert {info.metrics["environment/failed"] for info in infos} == {0}
        assert server.most == 2
        resets.append(sorted(reset["episode_id"] for reset in server.resets))
    assert len(set(resets[0])) == 2 * 4 * 4
    assert resets[0] == resets[1]  # two runs of a configuration


@pytest.fixture(scope="module")
def synchronous():
    return trained("advantage=gigpo")


@pytest.mark.slow
def test_turns_have_advantages_of_their_own(synchronous):
    _, infos = synchronous
    several = 0
    for info in infos:
        mask, advantages = np.asarray(info.trajectories.response_mask_BT), info.advantages_BT
        for row, episode in enumerate(info.episodes):
            chosen = np.asarray(advantages)[row][mask[row]]
            ends = np.cumsum([turn.tokens for turn in episode.turns])
            parts = np.split(chosen, ends[:-1])
            assert all(np.ptp(part) == 0 for part in parts)
            several += len({part[0] for part in parts}) > 1
        assert info.metrics["environment/tokens_per_turn"] > 1
        assert 0 <= info.metrics["time/environment"] < info.metrics["time/rollout"]
    assert several > 4


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("advantage=turn_returns", "advantage.gamma=0.9"),
        ("advantage=gae", "critic=shared", "advantage.turn_gamma=0.9", "advantage.turn_lambda=0.8"),
    ],
)
def test_other_advantages_by_turn_train(options):
    trained(*options)


@pytest.mark.slow
def test_a_step_without_work_ahead_is_synchronous(synchronous):
    _, ours = trained("advantage=gigpo", "collector=asynchronous", "collector.ahead=0")
    assert_same(ours, synchronous[1])


@pytest.mark.slow
def test_episodes_are_sampled_during_updates():
    _, infos = trained("collector=asynchronous", "steps=4", "rollout.concurrency=[2,8]")
    assert all(2 <= info.metrics["rollout/concurrency"] <= 8 for info in infos)
    assert max(info.metrics["staleness/max"] for info in infos) > 0
    assert all(len(episode.turns) for info in infos for episode in info.episodes)


def test_episodes_are_not_interrupted():
    options = (*SMALL, "collector=asynchronous", "collector.on_new_weights=abort")
    with pytest.raises(InputError, match="would interrupt episodes, whose environments cannot"):
        build(compose(options))


@pytest.mark.slow
def test_groups_without_a_gradient_are_replaced(synchronous):
    _, ours = trained("collector=dynamic_sampling", "advantage=gigpo")
    assert_same(ours, synchronous[1])  # every group has a gradient


@pytest.mark.slow
def test_a_resumed_run_sees_the_same_episodes(synchronous):
    """Its source goes on; worlds and keys depend on the step alone."""
    first, (one,) = trained("advantage=gigpo", "steps=1")
    again = build(compose((*SMALL, "advantage=gigpo")))
    again.loop.source.restore(first.loop.source.state())
    again.loop.collector.restore(first.loop.collector.state())
    (other,) = train(again.loop, one.state)
    assert_same([one, other], synchronous[1])


@pytest.mark.slow
def test_an_evaluation_has_samples_and_meets_the_same_worlds():
    experiment = build(compose((*SMALL, "evaluation.samples=2", "evaluation.pass_at_k=[2]")))
    evaluation = experiment.evaluation
    state = experiment.state
    answered = list(evaluation.answered(state))
    copies = [[replace(prompt) for prompt in prompts] for prompts in evaluation.sets]
    again = list(replace(evaluation, sets=copies).answered(state))
    worlds = {}
    for one, other in zip(answered, again, strict=True):
        assert tuple(one.episodes) == tuple(other.episodes)
        for (prompt, _), episode in zip(one.chunk.rows(), one.episodes, strict=False):
            worlds.setdefault(prompt.id, set()).add(episode.opening[-1]["content"])
    assert len(worlds) == 4
    assert all(len(each) == 1 for each in worlds.values())
    assert len(set.union(*worlds.values())) == 4
    metrics = evaluation.evaluate(state)
    assert metrics["eval/arithmetic/prompts"] == 4
    assert "eval/arithmetic/pass_at_2" in metrics


def test_a_sample_has_its_turns(synchronous):
    experiment, infos = synchronous
    tokenizer = experiment.loop.policy.tokenizer
    for sample, episode in zip(samples_of(infos[0], 4, tokenizer), infos[0].episodes, strict=False):
        row = json.loads(json.dumps(sample.to_dict()))
        assert Sample.from_dict(row) == sample
        assert episode.opening[-1]["content"] in sample.tokens["prompt"]
        assert len(sample.turns) == len(episode.turns)
        for turn, ours in zip(sample.turns, episode.turns, strict=True):
            assert turn["text"] == ours.text
            assert turn["reward"] == pytest.approx(ours.reward, abs=1e-4)
            assert turn["versions"] == [0]
            assert turn["sampling_seconds"] >= 0
        assert sum(turn["tokens"] for turn in sample.turns) == sample.length
        assert sample.tokens["mask"].count("1") == sample.length
        assert (sample.length < len(sample.tokens["mask"])) == (len(episode.turns) > 1)
