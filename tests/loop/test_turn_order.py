"""Tests credit by turn where the calls of an episode alternate between conversations."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl4p.advantage.gae import GAE
from rl4p.advantage.reinforce_pp import ReinforcePP
from rl4p.advantage.turn_returns import TurnReturns
from rl4p.base.types import Finish, Rewards, Sampling
from rl4p.configuration import compose
from rl4p.loop.batches import reordered, time_order
from rl4p.loop.loop import train
from rl4p.loop.scoring import turn_states
from rl4p.protocols.engine import Completion
from rl4p.reward.weighted import Weighted
from rl4p.rollout.recorder import CallLimits, FinishedEpisode, Recorder, rows_on_host
from rl4p.runs.build import build
from rl4p.runs.grading import rows_of_turns

END = 99
ORDERS = ("pwp", "wp", "ppw", "pwpw", "pwwp", "pwxpwx", "pwpwxxp", "ppwwpp", "xpwxp")


class ByNumber:
    """Gives turn k the reward 10 k."""

    weight = 1.0

    def by_turn(self, episode):
        return [10.0 * (number + 1) for number in range(len(episode.turns))]

    def __call__(self, episodes):
        return [sum(self.by_turn(episode)) for episode in episodes]


@pytest.fixture
def played(make_prompt):
    """Returns a function that plays an order of conversations, and returns a row of its calls.

    The tokens of turn k are all 100 + k, its weight version and its state are k, and it has k
    tokens and an end token. With `together`, all calls of two neighbours run at the same time.
    """

    def play(order, *, together=False):
        counts = iter(range(1, 100))

        async def generate(request):
            number = next(counts)
            for _ in range(20 - number if together else 1):  # the last one asked ends first
                await asyncio.sleep(0)
            tokens = [100 + number] * number + [END]
            return Completion(
                tokens=np.array(tokens, np.int32),
                logprobs=np.full(len(tokens), -1.0, np.float32),
                versions=np.full(len(tokens), number, np.int32),
                finish=Finish.STOP,
            )

        episode = FinishedEpisode(prompt=make_prompt(), segments=[], finish=Finish.STOP)
        calls = Recorder(
            generate=generate,
            episode=episode,
            key=np.zeros(2, np.uint32),
            limits=CallLimits(tokens=400, calls=20, call_tokens=None, positions=400),
            sampling=Sampling(),
            decode=lambda tokens: " ".join(map(str, tokens)),
            end_ids=(END,),
        )
        contexts = {name: [ord(name), 1] for name in order}

        async def call(name):
            completion = await calls.complete(contexts[name], 20)
            contexts[name] = [*contexts[name], *completion.tokens.tolist(), 5]

        async def agent():
            if together:
                await asyncio.gather(*(call(name) for name in order))
            else:
                for name in order:
                    await call(name)

        asyncio.run(agent())
        episode = FinishedEpisode.from_dict(episode.to_dict())  # as other processes get it
        policy: Any = SimpleNamespace(pad_id=0)
        return rows_on_host(policy, [episode], 1, 120)

    return play


def columns_of(trajectories, turn):
    """Returns the columns of a turn: its own token is its text, and an end token follows."""
    number = int(turn.text.split()[0])
    own = np.flatnonzero(np.asarray(trajectories.tokens_BT)[0] == number).tolist()
    return [*own, own[-1] + 1]


def estimated(advantage, trajectories, episodes, rewards, **scores):
    """Returns the advantages as the loop computes them."""
    given = trajectories, rewards, scores
    order_BT = time_order(np.asarray(trajectories.response_mask_BT), episodes)
    if order_BT is None:
        return np.asarray(advantage(*given[:2], **({"scores": scores} if scores else {})))
    trajectories, rewards, scores = reordered(given, order_BT)
    advantages_BT = advantage(trajectories, rewards, **({"scores": scores} if scores else {}))
    return np.asarray(reordered(advantages_BT, np.argsort(order_BT, axis=1)))


@pytest.mark.parametrize("order", ORDERS)
def test_rewards_states_and_versions_are_on_the_tokens_of_their_turns(played, order):
    trajectories, episodes = played(order)
    (episode,) = episodes
    rewards = Weighted(terms={"x": ByNumber()})(trajectories, episodes)
    assert rewards.tokens_BT is not None
    for number, turn in enumerate(episode.turns[:-1]):
        columns = columns_of(trajectories, turn)
        assert rewards.tokens_BT[0, columns].tolist() == [0] * (turn.tokens - 1) + [
            10.0 * (number + 1)
        ]
    assert np.sum(rewards.tokens_BT) == 5.0 * len(order) * (len(order) - 1)
    mask_T = np.asarray(trajectories.response_mask_BT)[0]
    rows = rows_of_turns(episode, np.asarray(trajectories.policy_version_BT)[0][mask_T])
    assert rows is not None
    assert [row["versions"] for row in rows] == [[n + 1] for n in range(len(order))]


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
def test_returns_go_back_in_time(played, order):
    """With a reward of 1 at the end, turn k of n gets gamma^(n-k), and 1 without a discount."""
    trajectories, episodes = played(order)
    one = Rewards(total_B=np.ones(1, np.float32), terms={}, valid_B=np.ones(1, bool))
    found = estimated(TurnReturns(gamma=0.5), trajectories, episodes, one)
    turns = episodes[0].turns
    for number, turn in enumerate(turns):
        expected = 0.5 ** (len(turns) - 1 - number)
        assert found[0, columns_of(trajectories, turn)].tolist() == [expected] * turn.tokens
    assert not found[~np.asarray(trajectories.response_mask_BT)].any()


@pytest.mark.quick(1)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "advantage",
    [
        GAE(turn_gamma=0.5, turn_lambda=0.9, whiten=False),
        GAE(gamma=0.9, lambda_policy=0.8, whiten=False),
        ReinforcePP(),
        TurnReturns(gamma=0.3),
    ],
)
def test_advantages_are_those_of_one_conversation_with_the_same_turns(played, order, advantage):
    found = {}
    for name in (order, "p" * len(order)):
        trajectories, episodes = played(name)
        rewards = Weighted(terms={"x": ByNumber()})(trajectories, episodes)
        values_BT = np.sin(np.asarray(trajectories.tokens_BT)).astype(np.float32)
        scores = {"values": values_BT} if isinstance(advantage, GAE) else {}
        advantages = estimated(advantage, trajectories, episodes, rewards, **scores)
        found[name] = [advantages[0, columns_of(trajectories, turn)] for turn in episodes[0].turns]
    for ours, theirs in zip(*found.values(), strict=True):
        assert ours.any()
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("order", ["pw", "pwx", "pwxyz"])
def test_calls_at_the_same_time_end_in_any_order(played, order):
    trajectories, episodes = played(order, together=True)
    (episode,) = episodes
    texts = [turn.text.split()[0] for turn in episode.turns]
    assert texts != sorted(texts)
    mask_T = np.asarray(trajectories.response_mask_BT)[0]
    chosen = np.asarray(trajectories.tokens_BT)[0][mask_T]
    for turn, place in zip(episode.turns, episode.turn_places, strict=True):
        assert set(chosen[place].tolist()) == {int(turn.text.split()[0]), END}


def test_one_conversation_is_in_the_order_of_time(played):
    trajectories, episodes = played("pppp")
    assert time_order(np.asarray(trajectories.response_mask_BT), episodes) is None
    assert [turn.start for turn in episodes[0].turns] == [None] * 4


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_a_run_gives_each_turn_of_a_planner_and_a_worker_its_return():
    options = (
        *("data.train_size=20", "data.held_out_size=4", "steps=1", "prompts_per_step=2"),
        *("group_size=2", "max_response_tokens=160", "tracker=none"),
        *("rollout=agent", "trusted_targets=tests", "reward=episode"),
        "rollout.agent._target_=tests.support.worlds.PlannerAndWorker",
        *("evaluation.term=episode_reward", "advantage=turn_returns", "advantage.gamma=0.5"),
    )
    experiment = build(compose(options))
    (info,) = train(experiment.loop, experiment.state)
    experiment.loop.collector.close()
    mask_BT = np.asarray(info.trajectories.response_mask_BT)
    alternate = 0
    for row, episode in enumerate(info.episodes):
        assert episode.failure is None
        alternate += any(turn.start is not None for turn in episode.turns)
        chosen = np.asarray(info.advantages_BT)[row][mask_BT[row]]
        for place, expected in zip(episode.turn_places, (0.25, 0.5, 1.0), strict=True):
            assert set(chosen[place].tolist()) == {expected}
    assert alternate
    assert info.metrics["update/grad_norm"] > 0


def test_the_state_before_a_turn_is_the_one_after_the_turn_before_in_time(played):
    trajectories, episodes = played("pwp")
    (episode,) = episodes
    turns = [
        replace(turn, state=state)
        for turn, state in zip(episode.turns, ("a", "a", None), strict=True)
    ]
    states = turn_states(trajectories, [replace(episode, turns=tuple(turns))])
    first, second, third = (
        set(states[0, columns_of(trajectories, turn)].tolist()) for turn in turns
    )
    assert second == third != first
