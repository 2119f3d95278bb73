import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.advantage.maxent_grpo import MaxEntGRPO


def call(phase, trajectories, rewards, scores=None, memory=None):
    memory = phase.initial_state() if memory is None else memory
    return jax.jit(phase)(trajectories, rewards, scores=scores or {}, memory=memory)


def test_by_hand_without_a_reference(make_trajectories, make_rewards, per_sample):
    """Rewards 0 and log 3 give q = (1, 3) / 4; tau 1/2 squares it: w = (1, 9) / 10; A = 2 w - 1."""
    trajectories = make_trajectories((1, 8, 2, 3), group_ids=(1, 1, 1, 0))
    rewards = make_rewards((0, np.log(3), 0, 5), valid=(1, 1, 0, 1))
    advantages, _ = call(MaxEntGRPO(), trajectories, rewards)
    expected = [-0.8, 0.8, 0, 0]
    np.testing.assert_allclose(per_sample(trajectories, advantages), expected, rtol=1e-4, atol=1e-5)


def test_the_reward_has_a_temperature_and_q_a_floor(make_trajectories, make_rewards, per_sample):
    """Rewards 0 and 2 log 3 at temperature 2 give (1, 3) / 4; with the floor, half of it + 1/4."""
    trajectories = make_trajectories((1, 8), group_ids=(0, 0))
    phase = MaxEntGRPO(reward_temperature=2.0, floor=0.25, tau=1.0)
    advantages, _ = call(phase, trajectories, make_rewards((0, 2 * np.log(3))))
    np.testing.assert_allclose(per_sample(trajectories, advantages), [-0.25, 0.25], rtol=1e-5)


@pytest.mark.parametrize(("denominator", "odds"), [("tau_plus_beta", np.sqrt(12)), ("tau", 12.0)])
def test_by_hand_with_a_reference(make_trajectories, make_rewards, per_sample, denominator, odds):
    """The odds are 3 by q and 4 by the reference's mean token, independent of the lengths."""
    trajectories = make_trajectories((2, 3), group_ids=(0, 0))
    reference = np.full((2, 16), np.nan, np.float32)
    reference[0, 8:10], reference[1, 8:11] = np.log(1 / 8), np.log(1 / 2)
    scores = {"reference_logprobs": jnp.asarray(reference)}
    phase = MaxEntGRPO(beta=1.0, tau=1.0, denominator=denominator)
    assert phase.needs == {"reference_logprobs"}
    rewards = make_rewards((0, np.log(3)))
    advantages, _ = call(phase, trajectories, rewards, scores)
    weight = odds / (1 + odds)
    expected = [1 - 2 * weight, 2 * weight - 1]
    np.testing.assert_allclose(per_sample(trajectories, advantages), expected, rtol=1e-4)


def test_extreme_rewards_stay_finite(make_trajectories, make_rewards, per_sample):
    trajectories = make_trajectories((1, 8, 2, 3), group_ids=(0, 0, 0, 0))
    phase = MaxEntGRPO(tau=0.05)
    advantages, _ = call(phase, trajectories, make_rewards((1e6, -1e6, 0, 1)))
    np.testing.assert_allclose(per_sample(trajectories, advantages), [3, -1, -1, -1], atol=1e-5)


def test_tau_follows_the_entropy(make_trajectories, make_rewards):
    """The mean entropy over tokens is (1 + 3 x 3) / 4 = 2.5, then 0.9 x 2.5 + 0.1 x 0.5 = 2.3.

    Tau falls since this is above the target 2, but not in the first step: log 0.5 + 0.1 (2 - 2.3).
    """
    trajectories = make_trajectories((1, 3, 5))
    rewards = make_rewards((0, 1, 0), valid=(1, 1, 0))
    phase = MaxEntGRPO(tau_learning_rate=0.1, target_entropy=2.0, tau_warmup=1)
    assert phase.needs == {"entropy"}
    entropy = np.where(trajectories.response_mask_BT, [[1], [3], [7]], np.nan)
    scores = {"entropy": jnp.asarray(entropy, jnp.float32)}
    _, memory = call(phase, trajectories, rewards, scores)
    np.testing.assert_allclose(memory["entropy"], 2.5)
    np.testing.assert_allclose(memory["log_tau"], np.log(0.5), rtol=1e-6)

    scores = {"entropy": jnp.full((3, 16), 0.5)}
    _, memory = call(phase, trajectories, rewards, scores, memory)
    np.testing.assert_allclose(memory["entropy"], 2.3, rtol=1e-6)
    np.testing.assert_allclose(memory["log_tau"], np.log(0.5) - 0.03, rtol=1e-6)

    nothing = make_rewards((0, 0, 0), valid=(0, 0, 0))
    _, same = call(phase, trajectories, nothing, scores, memory)
    assert jax.tree.map(float, same) == jax.tree.map(float, memory)


@pytest.mark.parametrize(("entropy", "bound"), [(0.0, 2.0), (9.0, 0.25)])
def test_tau_stays_within_its_bounds(make_trajectories, make_rewards, entropy, bound):
    trajectories, rewards = make_trajectories((1, 3)), make_rewards((0, 1))
    phase = MaxEntGRPO(tau_learning_rate=99.0, tau_warmup=0, tau_min=0.25, tau_max=2.0)
    scores = {"entropy": jnp.full((2, 16), entropy)}
    _, memory = call(phase, trajectories, rewards, scores)
    np.testing.assert_allclose(memory["log_tau"], np.log(bound), rtol=1e-6)


def test_the_memory_holds_the_tau_that_is_used(make_trajectories, make_rewards, per_sample):
    trajectories, rewards = make_trajectories((1, 3), group_ids=(0, 0)), make_rewards((0, 1))
    memory = MaxEntGRPO().initial_state() | {"log_tau": jnp.float32(np.log(3))}
    kept, _ = call(MaxEntGRPO(), trajectories, rewards, memory=memory)
    given, _ = call(MaxEntGRPO(tau=3.0), trajectories, rewards)
    np.testing.assert_allclose(kept, given, rtol=1e-5)


def test_options_of_a_controller_that_does_nothing_are_refused():
    with pytest.raises(ValueError, match="target_entropy, tau_max would have no effect"):
        MaxEntGRPO(target_entropy=1.0, tau_max=2.0)
    MaxEntGRPO(target_entropy=1.0, tau_learning_rate=0.1)


def test_a_response_without_tokens_leaves_its_group(make_trajectories, make_rewards, per_sample):
    """The third sample has the highest reward; the other two are as in the first test."""
    trajectories = make_trajectories((1, 8, 0), group_ids=(1, 1, 1))
    rewards = make_rewards((0, np.log(3), 9))
    advantages, _ = call(MaxEntGRPO(), trajectories, rewards)
    expected = [-0.8, 0.8, 0]
    np.testing.assert_allclose(per_sample(trajectories, advantages), expected, rtol=1e-4, atol=1e-5)


def test_the_floor_counts_the_valid_samples(make_trajectories, make_rewards, per_sample):
    """With two valid samples q is (1, 3) / 4 x (1 - 2 x 0.25) + 0.25, as without the third."""
    trajectories = make_trajectories((1, 8, 2), group_ids=(0, 0, 0))
    rewards = make_rewards((0, np.log(3), 0), valid=(1, 1, 0))
    advantages, _ = call(MaxEntGRPO(floor=0.25, tau=1.0), trajectories, rewards)
    np.testing.assert_allclose(per_sample(trajectories, advantages), [-0.25, 0.25, 0], rtol=1e-5)


def test_without_a_learning_rate_nothing_is_asked_for_and_the_memory_stays(
    make_trajectories, make_rewards
):
    trajectories, rewards = make_trajectories((1, 3), group_ids=(0, 0)), make_rewards((0, 1))
    phase = MaxEntGRPO(tau=3.0)
    assert phase.needs == set()
    assert MaxEntGRPO(beta=0.5, tau_learning_rate=0.1).needs == {"reference_logprobs", "entropy"}
    memory = phase.initial_state() | {"entropy": jnp.float32(0.75), "steps": jnp.int32(4)}
    _, after = call(phase, trajectories, rewards, memory=memory)
    assert jax.tree.map(float, after) == {
        "log_tau": pytest.approx(np.log(3)),
        "entropy": 0.75,
        "steps": 4.0,
    }


def test_the_warm_up_counts_the_steps_before_the_first_move(make_trajectories, make_rewards):
    """With target 1 and entropy 0, log tau would grow by 0.1 in each step."""
    trajectories, rewards = make_trajectories((1, 3)), make_rewards((0, 1))
    options = {"tau_learning_rate": 0.1, "target_entropy": 1.0}
    phase = MaxEntGRPO(tau=1.0, tau_warmup=2, **options)
    compiled, memory, seen = jax.jit(phase), phase.initial_state(), []
    for _ in range(4):
        scores = {"entropy": jnp.zeros((2, 16))}
        _, memory = compiled(trajectories, rewards, scores=scores, memory=memory)
        seen.append(float(memory["log_tau"]))
    np.testing.assert_allclose(seen, [0, 0, 0.1, 0.2], rtol=1e-6)
    assert memory["steps"] == 4
