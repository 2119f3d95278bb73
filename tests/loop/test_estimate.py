"""Tests the call of an advantage phase in the loop, with numbers computed by hand."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.advantage.dr_grpo import DrGRPO
from rl4p.advantage.gae import GAE
from rl4p.advantage.running_baseline import RunningBaseline
from rl4p.base.errors import RunError
from rl4p.base.types import Finish
from rl4p.learner.kl import NONE, Fixed
from rl4p.learner.masking import spread_over_tokens
from rl4p.loop.estimate import estimate

COEFFICIENT = jnp.float32(0.5)
IN_REWARD = Fixed(beta=0.1, estimator="k1", placement="in_reward")  # `COEFFICIENT` replaces beta


@dataclass(frozen=True, kw_only=True)
class Noting:
    """An advantage that puts r on every token and records its calls."""

    needs: frozenset = frozenset()
    calls: list = field(default_factory=list)

    def __call__(self, trajectories, rewards, **asked):
        self.calls.append((rewards, asked))
        return spread_over_tokens(rewards.total_B, trajectories)


@pytest.fixture
def rows(make_trajectories, make_rewards):
    """Returns rows with 2, 1, 0 and 1 response tokens in columns 2 and 3; the last is invalid."""
    trajectories = make_trajectories((2, 1, 0, 1), width=2, limit=2, group_ids=(0, 0, 0, 0))
    behaviour = (
        jnp.zeros((4, 4))
        .at[:, 2:]
        .set(jnp.asarray([[-1.0, -2.0], [-1.0, 0.0], [0.0, 0.0], [-3.0, 0.0]]))
    )
    trajectories = replace(trajectories, behaviour_logprobs_BT=behaviour)
    return trajectories, make_rewards((1, 0, 0, 0), valid=(1, 1, 1, 0))


@pytest.fixture
def scores():
    """Returns a reference that is nan outside the tokens that count, and a score nobody needs."""
    reference = np.full((4, 4), np.nan, np.float32)
    reference[0, 2:], reference[1, 2] = (-2.0, -2.5), -0.5
    return {"reference_logprobs": jnp.asarray(reference), "entropy": jnp.zeros((4, 4))}


def test_samples_that_were_cut_are_left_out_and_advantages_are_clipped(
    make_trajectories, make_rewards
):
    """Rewards 4, 0, 9, 2, the third truncated: mean 2, differences 2, -2 and 0, clipped to 1.5."""
    finish = jnp.asarray([Finish.STOP, Finish.STOP, Finish.LENGTH, Finish.STOP], jnp.int8)
    trajectories = replace(make_trajectories((2, 1, 3, 2)), finish_B=finish)
    rewards = make_rewards((4, 0, 9, 2))
    options = ({}, COEFFICIENT)
    phase = DrGRPO(mask_truncated=True, clip=1.5)
    found = estimate(phase, NONE(), trajectories, rewards, *options)
    mask = np.asarray(trajectories.response_mask_BT)
    np.testing.assert_array_equal(found.advantages_BT[:, 8], [1.5, -1.5, 0, 0])
    np.testing.assert_array_equal(found.loss_mask_BT, mask & [[True], [True], [False], [True]])
    assert found.returns_BT is None
    assert not found.metrics
    found = estimate(DrGRPO(), NONE(), trajectories, rewards, *options)
    np.testing.assert_array_equal(found.advantages_BT[:, 8], [0.25, -3.75, 5.25, -1.75])
    np.testing.assert_array_equal(found.loss_mask_BT, mask)


def test_the_divergence_is_taken_from_the_reward_token_by_token(rows, scores):
    """The divergence is (1, 0.5) in the first row and -0.5 in the second, times 0.5."""
    phase = Noting()
    found = estimate(phase, IN_REWARD, *rows, scores, COEFFICIENT)
    ((rewards, asked),) = phase.calls
    wanted = [[-0.5, -0.25], [0.25, 0], [0, 0], [0, 0]]
    np.testing.assert_array_equal(rewards.tokens_BT[:, 2:], wanted)
    np.testing.assert_array_equal(rewards.tokens_BT[:, :2], 0)
    np.testing.assert_array_equal(rewards.total_B, [0.25, 0.25, 0, 0])
    np.testing.assert_array_equal(rewards.terms["correct"], [1, 0, 0, 0])
    np.testing.assert_allclose(found.metrics["update/kl"], (1 + 0.5 - 0.5) / 3, rtol=1e-6)
    assert not asked


def test_rewards_that_tokens_have_already_stay_theirs(rows, scores):
    trajectories, rewards = rows
    tokens = jnp.zeros((4, 4)).at[0, 2].set(0.75)  # of a total of 1
    phase = Noting()
    estimate(
        phase, IN_REWARD, trajectories, replace(rewards, tokens_BT=tokens), scores, COEFFICIENT
    )
    ((seen, _),) = phase.calls
    np.testing.assert_array_equal(seen.tokens_BT[0, 2:], [0.25, -0.25])
    np.testing.assert_array_equal(seen.total_B, [0.25, 0.25, 0, 0])


def test_a_penalty_in_the_loss_leaves_the_rewards_alone(rows, scores):
    phase = Noting()
    found = estimate(phase, replace(IN_REWARD, placement="in_loss"), *rows, scores, COEFFICIENT)
    ((rewards, _),) = phase.calls
    assert rewards is rows[1]
    assert not found.metrics


def test_an_advantage_is_given_what_it_asked_for_and_no_more(rows, scores):
    phase = Noting(needs=frozenset({"entropy"}))
    estimate(phase, IN_REWARD, *rows, scores, COEFFICIENT)
    ((_, asked),) = phase.calls
    assert asked.keys() == {"scores"}
    assert asked["scores"].keys() == {"entropy"}


def test_memory_goes_in_and_comes_out(rows):
    """Task 1 has the baseline 0.25 and task 0 is new; the clip changes the first sample only."""
    phase = RunningBaseline(decay=0.5, max_tasks=2, clip=0.5)
    memory = {"baseline": jnp.asarray([0.0, 0.25]), "seen": jnp.asarray([False, True])}
    scores = {"task_ids": jnp.asarray([1, 0, 0, 1], jnp.int32)}
    found, after = estimate(phase, NONE(), *rows, scores, COEFFICIENT, memory=memory)
    np.testing.assert_array_equal(found.advantages_BT[:, 2], [0.5, 0, 0, 0])
    np.testing.assert_array_equal(after["baseline"], [0, 0.625])
    assert after["seen"].all()


def test_a_critic_is_taught_the_return_after_the_divergence(rows, scores):
    """Undiscounted returns: 1 - 0.5 - 0.25 and 1 - 0.25; 0.25; and 0 elsewhere.

    Advantages with lambda 0 are r_t + V_{t+1} - V_t.
    """
    phase = GAE(whiten=False, lambda_policy=0.0)
    values = jnp.full((4, 4), 9.0).at[0, 2:].set(jnp.asarray([0.5, 2.0])).at[1, 2].set(1.0)
    scores = scores | {"values": values}
    found = estimate(phase, IN_REWARD, *rows, scores, COEFFICIENT)
    np.testing.assert_allclose(
        found.returns_BT[:, 2:], [[0.25, 0.75], [0.25, 0], [0, 0], [0, 0]], atol=1e-6
    )
    np.testing.assert_allclose(
        found.advantages_BT[:, 2:], [[1.0, -1.25], [-0.75, 0], [0, 0], [0, 0]], atol=1e-6
    )
    given = found.for_update(scores)
    assert given.keys() == {*scores, "returns"}
    assert given["returns"] is found.returns_BT
    assert found._replace(returns_BT=None).for_update(scores) is scores


def test_in_the_reward_the_sample_is_its_own_policys(rows, scores):
    """The penalty takes the sampler's log-probabilities for the policy's, only inside the mask."""
    trajectories, rewards = rows
    behaviour = trajectories.behaviour_logprobs_BT
    outside = jnp.where(trajectories.response_mask_BT, behaviour, jnp.nan).at[3].set(jnp.nan)
    trajectories = replace(trajectories, behaviour_logprobs_BT=outside)
    phase = Noting()
    estimate(phase, IN_REWARD, trajectories, rewards, scores, COEFFICIENT)
    ((seen, _),) = phase.calls
    np.testing.assert_array_equal(seen.tokens_BT[0, 2:], [-0.5, -0.25])
    np.testing.assert_array_equal(seen.total_B, [0.25, 0.25, 0, 0])


def test_a_penalty_of_no_weight_has_no_reference(rows):
    phase = Noting()
    found = estimate(phase, replace(IN_REWARD, beta=0.0), *rows, {}, COEFFICIENT)
    ((rewards, _),) = phase.calls
    assert rewards is rows[1]
    assert not found.metrics


def test_a_sample_that_was_cut_pays_no_penalty_and_is_not_measured(rows, scores):
    """Without the first row only the second row's -0.5 is left."""
    trajectories, rewards = rows
    cut = jnp.asarray([Finish.LENGTH, *[Finish.STOP] * 3], jnp.int8)
    phase = GAE(mask_truncated=True, whiten=False)
    scores = scores | {"values": jnp.zeros((4, 4))}
    found = estimate(
        phase, IN_REWARD, replace(trajectories, finish_B=cut), rewards, scores, COEFFICIENT
    )
    assert found.metrics["update/kl"] == -0.5
    np.testing.assert_array_equal(found.returns_BT[:, 2:], [[0, 0], [0.25, 0], [0, 0], [0, 0]])


def test_the_clip_is_of_the_advantages_and_not_of_the_critics_targets(rows, scores):
    """Two tokens have a return of 1 each, where the critic expects 0."""
    scores = scores | {"values": jnp.zeros((4, 4))}
    phase = GAE(clip=0.5, whiten=False, lambda_policy=1.0)
    found = estimate(phase, NONE(), *rows, scores, COEFFICIENT)
    np.testing.assert_array_equal(found.returns_BT[0, 2:], [1, 1])
    np.testing.assert_array_equal(found.advantages_BT[0, 2:], [0.5, 0.5])


def test_a_batch_without_tokens_has_no_divergence(rows, scores):
    trajectories, rewards = rows
    rewards = replace(rewards, valid_B=jnp.zeros(4, bool), total_B=jnp.zeros(4))
    found = estimate(Noting(), IN_REWARD, trajectories, rewards, scores, COEFFICIENT)
    assert found.metrics["update/kl"] == 0


@dataclass(frozen=True, kw_only=True)
class Returns:
    """An advantage that returns a fixed result."""

    result: Any

    def __call__(self, trajectories, rewards, **memory):
        return self.result


WRONG = r"advantages_BT as an array of float with the shape \(4, 4\)"


@pytest.mark.parametrize(
    ("result", "memory", "sentence"),
    [
        (None, {}, f"{WRONG}, not None"),
        ([0.0], {}, f"{WRONG}, not a list"),
        ((jnp.zeros((4, 4)), 1), {}, f"{WRONG}, not a tuple of 2"),
        (jnp.zeros((4, 1)), {}, rf"{WRONG}, not with the shape \(4, 1\)"),
        (jnp.zeros((4, 4), jnp.int32), {}, f"{WRONG}, not of int32"),
        (jnp.zeros((4, 4)), {"memory": 1}, r"\(advantages_BT, memory\), not a"),
        ((jnp.zeros((4, 4)), 1, 2), {"memory": 1}, r"\(advantages_BT, memory\), not a tuple of 3"),
    ],
)
def test_a_wrong_result_is_refused_in_one_sentence(rows, result, memory, sentence):
    with pytest.raises(
        RunError, match=rf"^advantage \({__name__}\.Returns\) must return {sentence}"
    ):
        estimate(Returns(result=result), NONE, *rows, {}, COEFFICIENT, **memory)


def test_wrong_targets_of_a_critic_are_refused(rows):
    class Teaches(Returns):
        needs = frozenset({"values"})

        def returns(self, trajectories, rewards, scores):
            return None

        def __call__(self, trajectories, rewards, scores):
            return self.result

    phase, scores = Teaches(result=jnp.zeros((4, 4))), {"values": jnp.zeros((4, 4))}
    with pytest.raises(RunError, match=r"Teaches\) must return returns as an array of float"):
        estimate(phase, NONE, *rows, scores, COEFFICIENT)
