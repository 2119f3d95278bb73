"""Tests episodes of several roles: their conversations, tokens, rewards and baselines."""

import copy
import json
from dataclasses import replace

import jax
import numpy as np
import pytest

import rl4p.rollout.episodes
from rl4p.base.errors import InputError
from rl4p.base.types import Finish
from rl4p.configuration import compose
from rl4p.loop.checks import check_trajectories
from rl4p.loop.loop import train
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.runs.build import build
from rl4p.runs.grading import rows_of_turns, turns_of
from rl4p.runs.sample import check_turn
from tests.support.episodes import ENDS, TEMPLATE, duel, logprobs_of, words
from tests.support.turns import assert_same
from tests.support.worlds import Duel

pytestmark = pytest.mark.mixed_dtypes

SMALL = (
    *("data.train_size=20", "data.held_out_size=4", "steps=2", "prompts_per_step=4"),
    *("group_size=4", "max_response_tokens=320", "tracker=none", "update.microbatch_widths=1"),
    *("reward=episode", "evaluation.term=episode_reward", "trusted_targets=tests"),
)
GAME = (
    *("rollout=environment", "+environment@rollout.environment=gymnasium"),
    "rollout.environment.factory._target_=tests.support.worlds.Duel",
    *("rollout.environment.roles=[a,b]", "rollout.max_turn_tokens=48"),
)
TEAM = ("rollout=agent", "rollout.agent._target_=tests.support.worlds.Team")
BY_ROLE = ("advantage=running_baseline", "advantage.max_roles=2", "advantage.decay=0.5")


@pytest.fixture(scope="module")
def ending(policy):
    """Every second turn ends by one of several end tokens, which the template writes as well."""
    tokenizer = copy.deepcopy(policy.tokenizer)
    tokenizer.chat_template = TEMPLATE
    return replace(policy, end_ids=ENDS, tokenizer=tokenizer)


@pytest.mark.slow
def test_each_role_reads_what_it_is_told_and_nothing_else(sample, ending, params):
    trajectories, episodes = sample(duel(), group_size=4)
    check_trajectories(trajectories)
    both = 0
    for row, episode in enumerate(episodes):
        assert episode.failure is None
        assert [turn.role for turn in episode.turns] == list("abab")[: len(episode.turns)]
        segments = words(trajectories, row)
        assert len(segments) == len({turn.role for turn in episode.turns})
        both += len(segments) == 2
        for own, (tokens, _) in zip("ab", segments, strict=False):
            text = ending.tokenizer.decode(tokens, skip_special_tokens=False)
            assert episode.prompt.question in text
            told = {"a": ("a begins", "a reads 2"), "b": ("b reads 1", "b reads 3")}
            for role, texts in told.items():
                assert (texts[0] in text) == (role == own)
                assert role == own or texts[1] not in text
    assert both > 4
    mask = np.asarray(trajectories.response_mask_BT)
    ours, behaviour = logprobs_of(ending, params, trajectories), trajectories.behaviour_logprobs_BT
    np.testing.assert_allclose(ours[mask], np.asarray(behaviour)[mask], atol=2e-5)


@pytest.mark.slow
def test_both_samplers_hold_the_same_conversations(sample):
    assert sample(duel())[1] == sample(duel(engine=NaiveSampler))[1]


@pytest.mark.slow
def test_the_rewards_of_the_end_go_to_the_last_message_of_each_role(sample):
    _, episodes = sample(duel(), group_size=8)
    ended = [episode for episode in episodes if episode.finish is Finish.STOP]
    assert ended
    for episode in ended:
        said = [turn.text.strip() for turn in episode.turns]
        own = [sum(map(ord, text)) % 7 / 7 for text in said]
        win = 1.0 if len(said[3]) > len(said[2]) else -1.0
        expected = [own[0], own[1], own[2] - win, own[3] + win]
        np.testing.assert_allclose([turn.reward for turn in episode.turns], expected, atol=1e-6)
        assert episode.turns[0].messages == ({"role": "user", "content": "b reads 1"},)


class Nobody(Duel):
    def step(self, action):
        text, reward, done, cut, _ = super().step(action)
        return text, reward, done, cut, {"role": "c"}


class Unsaid(Duel):
    def reset(self, *, seed=None, options=None):
        return super().reset()[0], {}


class Unknown(Duel):
    def step(self, action):
        text, reward, done, cut, info = super().step(action)
        return text, reward, done, cut, info | {"rewards": {"c": 1.0}}


class Infinite(Unknown):
    def step(self, action):
        *answer, info = super().step(action)
        return *answer, info | {"rewards": {"a": float("nan")}}


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (Nobody, "'c' is no role: the roles are a, b"),
        (Unsaid, "None is no role: the roles are a, b"),
        (Unknown, "'c' is no role: the roles are a, b"),
        (Infinite, "the reward nan of a step is not finite"),
    ],
)
def test_a_world_that_names_no_role_makes_its_episode_invalid(sample, factory, sentence):
    _, episodes = sample(duel(factory, max_failed=1.0))
    assert sentence in {episode.failure for episode in episodes} <= {sentence, None}


@pytest.mark.slow
def test_a_world_with_one_agent_may_have_these_fields_for_itself(sample):
    _, episodes = sample(duel(Unknown, roles=()))
    assert {episode.failure for episode in episodes} == {None}
    assert {turn.role for episode in episodes for turn in episode.turns} == {""}


def test_another_process_has_the_same_roles(sample, monkeypatch):
    _, ours = sample(duel())
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    for module in (rl4p.rollout.episodes, rl4p.rollout.episode_loop):
        monkeypatch.setattr(module, "agreed", lambda value: json.loads(json.dumps(value)))
    assert sample(duel())[1] == ours


def trained(*options):
    experiment = build(compose((*SMALL, *options)))
    infos = list(train(experiment.loop, experiment.state))
    experiment.loop.collector.close()
    return experiment, infos


@pytest.fixture(scope="module")
def game():
    return trained(*GAME, *BY_ROLE)


@pytest.mark.slow
@pytest.mark.parametrize("options", [GAME, TEAM], ids=["game", "team"])
def test_each_role_learns_from_its_reward_and_its_baseline(options, game):
    infos = game[1] if options is GAME else trained(*options, *BY_ROLE)[1]
    baseline = {}
    for info in infos:
        assert info.metrics["update/grad_norm"] > 0
        assert {episode.failure for episode in info.episodes} == {None}
        paid = {}
        for row, episode in enumerate(info.episodes):
            for turn in episode.turns:
                paid.setdefault(turn.role, {}).setdefault(row, 0.0)
                paid[turn.role][row] += turn.reward
        mask_BT = np.asarray(info.trajectories.response_mask_BT)
        means = {role: np.mean(list(rows.values())) for role, rows in paid.items()}
        baseline = {role: baseline.get(role, mean) for role, mean in means.items()}
        for row, episode in enumerate(info.episodes):
            chosen = np.asarray(info.advantages_BT)[row][mask_BT[row]]
            for turn, place in zip(episode.turns, episode.turn_places, strict=True):
                expected = paid[turn.role][row] - baseline[turn.role]
                np.testing.assert_allclose(chosen[place], expected, atol=1e-5)
        for role, rows in paid.items():
            reported = info.metrics[f"environment/reward/{role}"]
            assert reported == pytest.approx(sum(rows.values()) / len(info.episodes), abs=1e-5)
        baseline = {role: 0.5 * b + 0.5 * means[role] for role, b in baseline.items()}
    assert len(baseline) == 2
    if options is TEAM:
        (episode, *_) = infos[0].episodes
        worth = [sum(map(ord, turn.text)) % 7 / 7 for turn in episode.turns]
        expected = [0.0, worth[1], worth[0] + 0.25]  # the last message is the planner's
        assert [turn.reward for turn in episode.turns] == pytest.approx(expected)


@pytest.mark.slow
def test_two_runs_and_a_resumed_one_are_the_same(game):
    first, (one,) = trained(*GAME, *BY_ROLE, "steps=1")
    again = build(compose((*SMALL, *GAME, *BY_ROLE)))
    again.loop.source.restore(first.loop.source.state())
    again.loop.collector.restore(first.loop.collector.state())
    (other,) = train(again.loop, one.state)
    assert_same([one, other], game[1])


@pytest.mark.slow
def test_terms_of_the_whole_episode_count_for_every_role():
    """The term is 1 if the last response ends in an even digit, whoever said it."""
    term = ("term@reward.terms.format=format", "reward.terms.format.pattern='.*[02468]'")
    _, (info,) = trained(*GAME, *BY_ROLE, *term, "steps=1")
    weight = 0.5
    mask_BT, rewards = np.asarray(info.trajectories.response_mask_BT), info.rewards
    paid = {"a": [], "b": []}
    for row, episode in enumerate(info.episodes):
        for role in {turn.role for turn in episode.turns}:
            own = sum(turn.reward for turn in episode.turns if turn.role == role)
            paid[role].append(own + weight * float(rewards.terms["format"][row]))
    assert len(set(np.asarray(rewards.terms["format"]).tolist())) == 2
    for row, episode in enumerate(info.episodes):
        chosen = np.asarray(info.advantages_BT)[row][mask_BT[row]]
        for turn, place in zip(episode.turns, episode.turn_places, strict=True):
            own = sum(each.reward for each in episode.turns if each.role == turn.role)
            own += weight * float(rewards.terms["format"][row])
            np.testing.assert_allclose(chosen[place], own - np.mean(paid[turn.role]), atol=1e-5)


@pytest.mark.slow
def test_a_baseline_of_roles_needs_roles():
    options = [word for word in (*SMALL, *GAME, *BY_ROLE) if "roles=[" not in word]
    with pytest.raises(InputError, match="advantage=running_baseline has a baseline for each role"):
        build(compose(options))


@pytest.mark.slow
def test_samples_name_the_role_of_each_turn(game):
    _, infos = game
    episode = max(infos[0].episodes, key=lambda each: len(each.turns))
    rows = json.loads(json.dumps(rows_of_turns(episode, np.zeros(episode.tokens, int))))
    assert [row["role"] for row in rows] == list("abab")[: len(rows)]
    for row in rows:
        check_turn(row)
    again = turns_of(rows)
    assert [turn.role for turn in again] == [turn.role for turn in episode.turns]
    assert turns_of([{"text": "x"}])[0] == replace(turns_of([{"text": "x"}])[0], role="")
