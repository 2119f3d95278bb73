"""Tests the parts of a run: what a checkpoint saves, and in which order it is restored.

Tests the training batches of a step, alone and as the loop trains with them.
"""

from dataclasses import dataclass, fields
from itertools import islice

import jax
import numpy as np
import pytest

from rl4p.advantage.grpo import GRPO
from rl4p.base.errors import RunError
from rl4p.learner.gradient_step import gradient_step
from rl4p.learner.optimizer import AdamW
from rl4p.loop.batches import Loop, rollout_batch, rollout_batches
from rl4p.loop.collector.synchronous import Synchronous
from rl4p.loop.evaluation import Evaluation
from rl4p.loop.filter import Deviation
from rl4p.loop.loop import train
from rl4p.loop.source import Stream
from rl4p.loop.transform import Drop, Truncate
from rl4p.reward.weighted import Weighted
from rl4p.rollout.naive_sampler import NaiveSampler
from rl4p.runs.checkpoint import Orbax
from rl4p.update.ppo import PPO


def test_the_source_is_restored_before_the_collector_which_asks_it_for_prompts():
    others = {field.name: None for field in fields(Loop)}
    loop = Loop(**others | {"source": "source", "collector": "collector"})
    assert list(loop.stateful.items()) == [("source", "source"), ("collector", "collector")]


pytestmark = pytest.mark.mixed_dtypes


@dataclass(frozen=True, kw_only=True)
class OddOfSums:
    """Counts characters with odd codes, but only in answers to the question 1 + 2 and 5 + 5."""

    weight: float = 1.0

    def __call__(self, episodes):
        return [
            float(sum(ord(c) % 2 for c in x.response)) * (len(x.prompt.answer) < 2)
            for x in episodes
        ]


class Counting(OddOfSums):
    """Measures the number of its calls."""

    def open(self):
        return OpenCounting()


class OpenCounting:
    def __init__(self):
        self.calls = 0

    def __call__(self, episodes):
        self.calls += 1
        return [1.0] * len(episodes)

    def metrics(self):
        calls, self.calls = self.calls, 0
        return {"calls": calls} if calls else {}

    def close(self):
        pass


@pytest.fixture
def make_loop(policy, prompts, make_phases):
    def make(term=None, **options):
        phases = make_phases(
            rollout=NaiveSampler(max_response_tokens=8),
            reward=Weighted(terms={"odd": term or OddOfSums()}),
            advantage=GRPO(),
            update=PPO(),
        )
        source = Stream().open(prompts[:2], seed=0)
        collector = Synchronous().open(phases, policy, source, prompts_per_step=2, group_size=4)
        return Loop(
            **{"policy": policy, "phases": phases, "source": source, "collector": collector}
            | {"optimizer": AdamW(learning_rate=1e-2), "group_size": 4, "steps": 2}
            | options
        )

    return make


@pytest.fixture
def first_state(params, make_state):
    return lambda loop: make_state(params, loop.optimizer)


@pytest.mark.slow
def test_batches_with_updates_are_the_loop(make_loop, first_state):
    infos = list(train(loop := make_loop(), first_state(loop)))
    loop = make_loop()
    state = first_state(loop)
    batches = rollout_batches(loop, state)
    rollout, objective = next(batches), loop.phases.objective(loop.policy, loop.group_size)
    for info in infos:
        state, metrics = gradient_step(
            objective, loop.optimizer, {}, state, rollout.batch, rollout.coefficients
        )
        assert metrics["update/grad_norm"] == info.metrics["update/grad_norm"] > 0
        assert rollout.metrics["reward/mean"] == info.metrics["reward/mean"]
        assert rollout.episodes == info.episodes
        state = rollout.skipped(state)
        rollout = batches.send(state)
    jax.tree.map(np.testing.assert_array_equal, state.params, infos[-1].state.params)


@pytest.mark.slow
def test_batches_without_updates_go_on_with_the_same_weights(make_loop, first_state):
    loop = make_loop(steps=1)  # not a limit here
    state = first_state(loop)
    rollouts = list(islice(rollout_batches(loop, state), 3))
    texts = {tuple(episode.response for episode in each.episodes) for each in rollouts}
    assert len(texts) == 3
    versions = [np.max(each.batch.trajectories.policy_version_BT) for each in rollouts]
    assert versions == [0, 1, 2]
    assert all(np.any(each.batch.advantages_BT) for each in rollouts)
    state.check_not_donated()


@pytest.mark.slow
def test_a_step_has_what_a_term_measured_beside_its_grades(make_loop, first_state):
    loop = make_loop(term=Counting())
    state = first_state(loop)
    assert [rollout_batch(loop, state).metrics["reward/odd_calls"] for _ in range(2)] == [1, 1]
    loop = make_loop()
    assert "reward/odd_calls" not in rollout_batch(loop, first_state(loop)).metrics


def test_a_donated_state_is_refused_before_anything_is_sampled(
    make_loop, first_state, prompts, tmp_path
):
    loop = make_loop()
    state = first_state(loop)
    steps = train(loop, state)
    next(steps)
    before = loop.source.state()
    evaluation = Evaluation(
        every=1, phases=loop.phases, policy=loop.policy, sets=[prompts], term="odd", rows=8
    )
    checkpoints = Orbax().open(tmp_path, {})
    for use in (
        lambda: next(train(loop, state)),
        lambda: rollout_batch(loop, state),
        lambda: evaluation.evaluate(state),
        lambda: checkpoints.save(state),
    ):
        with pytest.raises(RunError, match="The buffers of this state were donated"):
            use()
    assert loop.source.state() == before
    checkpoints.close()


@pytest.mark.slow
def test_transforms_change_the_loss_and_not_the_samples(make_loop, first_state):
    """The answers to the second question all have reward 0: their group is dropped."""
    transforms = {"short": Truncate(most=3), "same": Drop(filters={"differ": Deviation()})}
    plain = rollout_batch(loop := make_loop(), first_state(loop))
    loop = make_loop(transforms=transforms)
    changed = rollout_batch(loop, first_state(loop))
    assert changed.episodes == plain.episodes
    np.testing.assert_array_equal(
        changed.batch.trajectories.tokens_BT, plain.batch.trajectories.tokens_BT
    )
    groups_B = [episode.prompt.answer for episode in changed.episodes]
    trained_B = np.sum(changed.batch.loss_mask_BT, axis=1)
    assert {answer for answer, count in zip(groups_B, trained_B, strict=True) if count} == {"3"}
    assert trained_B.max() == 3
    assert (changed.metrics["reward/dropped"], changed.metrics["reward/invalid"]) == (4, 0)
    assert changed.metrics["time/transforms"] > 0
    assert "time/transforms" not in plain.metrics
    loop = make_loop(transforms=transforms)
    for info in train(loop, first_state(loop)):
        assert info.metrics["update/grad_norm"] > 0
        assert info.metrics["rollout/logprob_gap_max"] < 1e-4


def test_transforms_that_leave_nothing_end_the_run(make_loop, first_state):
    loop = make_loop(transforms={"none": lambda group: group.without(np.ones(4, bool))})
    with pytest.raises(RunError, match=r"^transforms\.none left no token to train on"):
        next(train(loop, first_state(loop)))
