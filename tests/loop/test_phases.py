"""Tests the call of an advantage phase in the loop, with numbers computed by hand.

Tests the calls of the loop to all phases.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.advantage.dr_grpo import DrGRPO
from rl4p.advantage.gae import GAE
from rl4p.advantage.running_baseline import RunningBaseline
from rl4p.base.errors import InputError, RunError
from rl4p.base.types import Finish
from rl4p.learner.critic import Shared
from rl4p.learner.entropy import Adaptive as AdaptiveEntropy
from rl4p.learner.kl import NONE, Fixed
from rl4p.learner.kl import Adaptive as AdaptiveKL
from rl4p.learner.masking import spread_over_tokens
from rl4p.loop.phases import estimate
from rl4p.reward.weighted import Weighted
from rl4p.update.ppo import PPO

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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_memory_goes_in_and_comes_out(rows):
    """Task 1 has the baseline 0.25 and task 0 is new; the clip changes the first sample only."""
    phase = RunningBaseline(decay=0.5, max_tasks=2, clip=0.5)
    memory = {"baseline": jnp.asarray([0.0, 0.25]), "seen": jnp.asarray([False, True])}
    scores = {"task_ids": jnp.asarray([1, 0, 0, 1], jnp.int32)}
    found, after = estimate(phase, NONE(), *rows, scores, COEFFICIENT, memory=memory)
    np.testing.assert_array_equal(found.advantages_BT[:, 2], [0.5, 0, 0, 0])
    np.testing.assert_array_equal(after["baseline"], [0, 0.625])
    assert after["seen"].all()


@pytest.mark.slow
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


EPISODES = (SimpleNamespace(failure=None),) * 8  # of which phases see nothing else here


@dataclass(frozen=True, kw_only=True)
class Counting:
    """A phase whose memory counts its calls."""

    needs: frozenset = field(default=frozenset())

    def initial_state(self):
        return 0

    def __call__(self, x, memory):
        return x + memory, memory + 1


def plain(x):
    return 10 * x


@pytest.fixture
def phases(make_phases):
    def make(**changes):
        return make_phases(
            **{"rollout": plain, "reward": plain, "advantage": plain, "update": PPO()} | changes
        )

    return make


@pytest.fixture
def eight_rows(make_trajectories, make_rewards):
    """Trajectories of eight rows, and their rewards."""
    return make_trajectories(), make_rewards([1.0] * 8)


@dataclass(frozen=True, kw_only=True)
class Remembering:
    """A rollout, a reward or an advantage whose memory counts its calls."""

    call: Callable[..., Any]

    def initial_state(self):
        return 0

    def __call__(self, *arguments, memory, **options):
        return self.call(*arguments, **options), memory + 1


def test_memory_is_carried_from_call_to_call_and_others_have_none(phases, eight_rows):
    trajectories, rewards = eight_rows

    def draw(policy, params, prompts, **options):
        return trajectories, prompts

    def grade(trajectories, episodes):
        return rewards

    def weigh(trajectories, rewards):
        return trajectories.behaviour_logprobs_BT

    parts = {"rollout": draw, "reward": grade, "advantage": weigh}
    for name in parts:
        ours = phases(**parts | {name: Remembering(call=parts[name])})
        memory = ours.initial_memory()
        assert memory == {name: 0}
        for calls in (1, 2, 3):
            (sampled, episodes), memory = ours.sample(
                memory, None, {}, EPISODES, group_size=1, key=None, version=0
            )
            assert sampled is trajectories
            assert episodes == EPISODES
            graded, memory = ours.grade(memory, trajectories, episodes)
            assert graded is rewards
            estimated, memory = ours.estimate(memory, trajectories, rewards, {}, jnp.float32(0))
            np.testing.assert_array_equal(
                estimated.advantages_BT, trajectories.behaviour_logprobs_BT
            )
            assert memory == {name: calls}


def test_threads_take_turns_with_the_reward(phases, eight_rows):
    inside, second, most = [], threading.Event(), []
    trajectories, rewards = eight_rows

    def reward(trajectories, episodes):
        inside.append(1)
        second.wait(0.2)  # in which another thread would come in
        most.append(len(inside))
        inside.pop()
        return rewards

    ours = phases(reward=reward)
    changed = replace(ours, rollout=Counting())  # as an evaluation with a rollout of its own
    threads = [
        threading.Thread(target=each.grade, args=({}, trajectories, EPISODES))
        for each in (ours, changed, ours)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == [1, 1, 1]


def test_an_update_with_memory_is_refused(phases):
    for name in ("update", "correction", "critic"):
        with pytest.raises(InputError, match=f"{name} has an initial_state but cannot keep memory"):
            phases(**{name: Counting()}).initial_memory()


def test_needs_are_the_union(phases):
    assert phases().needs() == frozenset()
    assert phases(update=PPO(epochs=2)).needs() == {"proximal_logprobs"}
    assert phases(advantage=Counting(needs=frozenset({"proximal_logprobs"}))).needs() == {
        "proximal_logprobs"
    }


@pytest.mark.parametrize(
    ("name", "need", "given"),
    [
        ("rollout", "entropy", "no scores"),
        ("reward", "reference_logprobs", "no scores"),
        ("kl", "entropy", r"only \['reference_logprobs'\]"),
        ("entropy", "collision", r"only \['entropy'\]"),
        ("critic", "entropy", "no scores"),
    ],
)
def test_a_need_that_would_not_reach_its_phase_is_refused(phases, name, need, given):
    sentence = rf"{name} needs \['{need}'\], but the loop passes {given} to"
    with pytest.raises(InputError, match=sentence):
        phases(**{name: Counting(needs=frozenset({need}))}).needs()


def test_a_term_of_the_reward_is_given_no_scores_and_keeps_no_memory(phases):
    reward = Weighted(terms={"odd": SimpleNamespace(weight=1.0, needs={"entropy"})})
    with pytest.raises(InputError, match=r"reward needs \['entropy'\], but .* passes no scores"):
        phases(reward=reward).needs()
    with pytest.raises(ValueError, match=r"terms\.odd has an initial_state"):
        Weighted(terms={"odd": Counting()})


def test_a_correction_is_given_what_it_needs(phases):
    assert phases(correction=Counting(needs=frozenset({"entropy"}))).needs() == {"entropy"}


def test_values_and_a_critic_go_together(phases):
    with pytest.raises(InputError, match="choose critic=shared or critic=separate"):
        phases(advantage=GAE()).needs()
    with pytest.raises(InputError, match="A critic needs advantage=gae"):
        phases(critic=Shared()).needs()
    assert phases(critic=Shared(), advantage=GAE()).needs() == {"values"}


def test_a_need_that_nobody_meets_is_refused(phases):
    with pytest.raises(InputError, match="luck"):
        phases(advantage=Counting(needs=frozenset({"luck"}))).needs()


@pytest.mark.parametrize("name", ["rollout", "reward"])
def test_closing_ends_what_a_phase_has_opened(make_phases, name):
    closed = []
    make_phases(**{name: SimpleNamespace(close=lambda: closed.append(1))}).close()
    make_phases(**{name: SimpleNamespace()}).close()
    assert closed == [1]


def test_controllers_are_given_what_is_theirs(phases):
    ours = phases(kl=AdaptiveKL(beta=0.5, target=1.0), entropy=AdaptiveEntropy(alpha=0.25))
    memory = ours.initial_memory()
    found = ours.coefficients(memory, 0)
    assert (float(found["kl"]), float(found["entropy"])) == (0.5, 0.25)
    metrics = {"update/kl": jnp.float32(1.0), "update/entropy": jnp.float32(7.0)}
    after = ours.adapt(memory | {"advantage": 1}, metrics)
    assert after["advantage"] == 1
    assert float(after["kl"]["coefficient"]) == 0.5  # the divergence is at its target
    assert float(after["entropy"]["entropy"]) == 7.0


def test_checks_see_the_result_and_the_arguments(phases, eight_rows):
    seen = []
    trajectories, rewards = eight_rows
    checks = {
        "rollout": lambda result, policy, *, version: seen.append((result, policy, version)),
        "reward": lambda *arguments: seen.append(arguments),
        "advantage": lambda *arguments: seen.append(arguments[1:]),
    }
    ours = phases(
        rollout=lambda *arguments, **options: (trajectories, "episodes"),
        reward=lambda trajectories, episodes: rewards,
        advantage=lambda trajectories, rewards: trajectories.behaviour_logprobs_BT,
        checks=checks,
    )
    ours.sample({}, "policy", {}, (), group_size=1, key=None, version=7)
    ours.grade({}, trajectories, EPISODES)
    ours.estimate({}, trajectories, rewards, {}, jnp.float32(0))
    assert seen[0] == ((trajectories, "episodes"), "policy", 7)
    assert [tuple(map(id, each)) for each in seen[1:]] == [
        (id(rewards), id(trajectories)),
        (id(trajectories), id(rewards)),
    ]
