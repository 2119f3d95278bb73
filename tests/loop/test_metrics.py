import dataclasses
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import RunError
from rl4p.base.types import Episode, Finish, Turn
from rl4p.loop.metrics import (
    GAP,
    batch_metrics,
    check_gap,
    environment_metrics,
    rollout_metrics,
    staleness_shares,
    task_metrics,
)
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler


def test_every_metric_by_hand(make_trajectories, make_rewards):
    """The rewards of three groups are (1, 0, invalid), (2, 2) and (5)."""
    made = make_trajectories((1, 2, 3, 4, 0, 8), group_ids=(0, 0, 0, 5, 5, 2))
    versions = jnp.asarray([[8], [8], [5], [-1], [6], [8]], jnp.int32)
    trajectories = dataclasses.replace(
        made,
        finish_B=jnp.asarray([Finish.LENGTH, 0, 0, Finish.ABORT, 0, Finish.LENGTH], jnp.int8),
        policy_version_BT=jnp.where(made.response_mask_BT, versions, -1),
    )
    rewards = make_rewards((1, 0, 0, 2, 2, 5), valid=(1, 1, 0, 1, 1, 1))
    advantages = jnp.where(
        trajectories.response_mask_BT, jnp.asarray([[1.0], [-3], [0], [0], [9], [0]]), 0.0
    )
    assert batch_metrics(8, trajectories, rewards, advantages) == pytest.approx(
        {
            "reward/mean": 10 / 5,
            "reward/std": np.sqrt((1 + 4 + 0 + 0 + 9) / 5),
            "reward/correct": 2.0,
            "reward/invalid": 1.0,
            "rollout/response_tokens": 18 / 6,
            "rollout/truncated": 2 / 6,
            "advantage/zero_std_groups": 2 / 3,
            "advantage/mean": (1 * 1 + 2 * -3) / 18,
            "advantage/max": 3.0,  # the 9 is on no token
            "staleness/mean": 3 * 3 / 18,  # a token that no policy drew has staleness 0
            "staleness/max": 3.0,
        }
    )


def test_a_batch_of_nothing_has_finite_metrics(make_trajectories, make_rewards):
    trajectories, rewards = make_trajectories((0, 0)), make_rewards((0, 0), valid=(0, 0))
    metrics = batch_metrics(0, trajectories, rewards, jnp.zeros((2, 16)))
    assert np.isfinite(list(metrics.values())).all()
    assert metrics["reward/invalid"] == 2
    assert metrics["advantage/zero_std_groups"] == 1


def test_the_order_of_the_rows_does_not_matter(make_trajectories, make_rewards):
    trajectories, rewards = make_trajectories(), make_rewards(np.arange(8) % 3)
    advantages = jnp.where(trajectories.response_mask_BT, 1.0, 0.0)
    order = np.random.default_rng(0).permutation(8)
    shuffled = jax.tree.map(lambda x: x[order], (trajectories, rewards, advantages))
    assert batch_metrics(1, *shuffled) == pytest.approx(
        batch_metrics(1, trajectories, rewards, advantages)
    )


def test_each_term_is_a_mean_over_the_valid_rows(make_trajectories, make_rewards):
    rewards = make_rewards((4, 1, 0, 3), valid=(1, 1, 0, 1))
    terms = {"correct": jnp.float32([1, 0, 9, 1]), "style": jnp.float32([3, 1, 9, 2])}
    rewards = dataclasses.replace(rewards, terms=terms)
    trajectories = make_trajectories((2, 2, 2, 2))
    metrics = batch_metrics(0, trajectories, rewards, jnp.zeros((4, 16)))
    assert metrics["reward/correct"] == pytest.approx(2 / 3)
    assert metrics["reward/style"] == pytest.approx(6 / 3)
    assert metrics["reward/mean"] == pytest.approx(8 / 3)
    assert metrics["reward/invalid"] == 1


def test_the_mean_of_a_term_leaves_out_rows_to_which_it_does_not_apply(
    make_trajectories, make_rewards
):
    nan = jnp.nan
    rewards = make_rewards((4, 1, 0, 3), valid=(1, 1, 0, 1))
    terms = {"some": jnp.float32([1, nan, 0, 3]), "none": jnp.float32([nan, nan, 0, nan])}
    rewards = dataclasses.replace(rewards, terms=terms, late_B=jnp.asarray([0, 0, 1, 0], bool))
    metrics = batch_metrics(0, make_trajectories((2,) * 4), rewards, jnp.zeros((4, 16)))
    assert metrics["reward/some"] == pytest.approx(4 / 2)
    assert "reward/none" not in metrics
    assert (metrics["reward/invalid"], metrics["reward/late"]) == (1, 1)
    on_time = dataclasses.replace(rewards, late_B=jnp.zeros(4, bool))
    metrics = batch_metrics(0, make_trajectories((2,) * 4), on_time, jnp.zeros((4, 16)))
    assert "reward/late" not in metrics


def test_metrics_by_task_by_hand(make_rewards):
    nan = jnp.nan
    rewards = make_rewards((4, 1, 0, 3, 2, 0), valid=(1, 1, 0, 1, 1, 0))
    terms = {
        "correct": jnp.float32([1, 0.9, 0, 2, nan, 0]),
        "moves": jnp.float32([nan, nan, 0, 5, 7, 0]),
    }
    rewards = dataclasses.replace(rewards, terms=terms)
    tasks = ["sums", "sums", "sums", "rush", "rush", "lost"]
    assert task_metrics(tasks, rewards, "correct") == pytest.approx(
        {
            "reward/lost/invalid": 1.0,
            "reward/rush/invalid": 0.0,
            "reward/rush/mean": 5 / 2,
            "reward/rush/correct": 2.0,
            "reward/rush/moves": 12 / 2,
            "reward/rush/pass_at_1": 1.0,
            "reward/sums/invalid": 1.0,
            "reward/sums/mean": 5 / 2,
            "reward/sums/correct": 1.9 / 2,
            "reward/sums/pass_at_1": 1 / 2,
        }
    )
    without = task_metrics(tasks, rewards, None)
    assert not [name for name in without if "pass_at_1" in name]
    assert {type(x) for x in without.values()} == {float}


def test_a_total_on_an_invalid_row_counts_nowhere(make_trajectories, make_rewards):
    """The contract says 0 there, but the mean must not depend on it."""
    rewards, trajectories = make_rewards((4, 2, 100), valid=(1, 1, 0)), make_trajectories((2,) * 3)
    metrics = batch_metrics(0, trajectories, rewards, jnp.zeros((3, 16)))
    assert metrics["reward/mean"] == pytest.approx(3)
    assert metrics["reward/std"] == pytest.approx(1)
    assert metrics["reward/correct"] == pytest.approx(3)


def test_padding_changes_no_metric(make_trajectories, make_rewards):
    rewards = make_rewards(np.arange(8) % 3)
    found = []
    for padding in ({}, {"left": 3, "right": 5}):
        trajectories = make_trajectories(**padding)
        values = jnp.arange(8.0)[:, None] - 3
        advantages = jnp.where(trajectories.response_mask_BT, values, 0.0)
        found.append(batch_metrics(1, trajectories, rewards, advantages))
    assert found[0] == found[1]


@pytest.mark.parametrize("finish", [Finish.STOP, Finish.LENGTH, Finish.ABORT])
def test_only_what_met_the_limit_is_truncated(make_trajectories, make_rewards, finish):
    trajectories = dataclasses.replace(
        make_trajectories((2, 2)), finish_B=jnp.full(2, finish, jnp.int8)
    )
    metrics = batch_metrics(0, trajectories, make_rewards((1, 2)), jnp.zeros((2, 16)))
    assert metrics["rollout/truncated"] == (finish == Finish.LENGTH)


def test_metrics_are_plain_floats(make_trajectories, make_rewards):
    metrics = batch_metrics(3, make_trajectories(), make_rewards(np.ones(8)), jnp.ones((8, 16)))
    assert {type(value) for value in metrics.values()} == {float}


def test_what_the_first_parameters_sampled_grows_stale_too(make_trajectories, make_rewards):
    made = make_trajectories((2, 2))
    versions = jnp.where(made.response_mask_BT, jnp.asarray([[0], [3]], jnp.int32), -1)
    trajectories = dataclasses.replace(made, policy_version_BT=versions)
    metrics = batch_metrics(3, trajectories, make_rewards((1, 2)), jnp.zeros((2, 16)))
    assert (metrics["staleness/mean"], metrics["staleness/max"]) == (1.5, 3.0)
    shares = staleness_shares(3, jax.device_get(trajectories))
    assert shares == {"staleness/share_0": 0.5, "staleness/share_3": 0.5}


def test_the_metrics_of_episodes_by_hand(make_prompt):
    def turn(tokens, seconds, **metrics):
        return Turn(text="t", tokens=tokens, environment_seconds=seconds, metrics=metrics)

    def episode(*turns, failure=None, segments=0):
        return Episode(
            prompt=make_prompt(), response="t", turns=turns, failure=failure, segments=segments
        )

    assert environment_metrics([episode()]) == {}
    episodes = [
        episode(turn(3, 0.5, tool_calls=2), turn(5, 1.0)),
        episode(turn(4, 0.5, tool_calls=1)),
        episode(failure="TimeoutError: "),
        episode(failure="the agent returned without a call of the model"),
    ]
    assert environment_metrics(episodes) == {
        "environment/turns": 3 / 4,
        "environment/tokens_per_turn": 4.0,
        "environment/failed": 0.5,
        "environment/failed/TimeoutError": 0.25,
        "environment/failed/other": 0.25,
        "environment/tool_calls": 3 / 4,
        "time/environment_calls": 0.5,
    }
    counted = [episode(turn(3, 0.5), segments=1), episode(turn(3, 0.5), segments=2)]
    assert environment_metrics(counted)["environment/segments"] == 1.5


def test_a_rollout_has_the_metrics_of_its_last_call():
    drafting = Continuous(max_response_tokens=8, draft_tokens=2)
    drafting.counts.tokens, drafting.counts.steps = 6, 4
    metrics = rollout_metrics(drafting)
    assert metrics == {"rollout/tokens_per_decode_step": 1.5, "rollout/drafted": 0.0}
    assert rollout_metrics(Continuous(max_response_tokens=8)) == {}
    assert rollout_metrics(object()) == {}


LIMITED = NaiveSampler(max_response_tokens=8, max_logprob_gap=0.05)


def episodes(*engines):
    return [SimpleNamespace(engine=engine) for engine in engines]


@pytest.mark.parametrize(
    ("rollout", "metrics"),
    [
        (LIMITED, {GAP: 0.05}),
        (LIMITED, {}),  # no token is of the weights of this step
        (SimpleNamespace(max_logprob_gap="auto"), {GAP: 0.05}),
        (NaiveSampler(max_response_tokens=8), {GAP: 9.0}),
        (SimpleNamespace(), {GAP: 9.0}),
    ],
)
def test_a_small_gap_and_one_without_a_limit_pass(rollout, metrics):
    check_gap(rollout, 3, metrics, episodes(""))


@pytest.mark.parametrize("gap", [0.06, math.inf, math.nan])
@pytest.mark.parametrize(
    ("engines", "who"),
    [
        (("", ""), r"The sampler \(NaiveSampler\) does not sample"),
        (("http://b:1", "http://b:1"), "http://b:1 does not sample"),
        (("http://b:1", "http://a:1"), "http://a:1 and http://b:1 do not sample"),
    ],
)
def test_a_large_gap_names_engines_and_version(gap, engines, who):
    with pytest.raises(
        RunError, match=rf"^{who} from the weights of step 3 \(version 3\): .* in step 4 .*gap=0.05"
    ):
        check_gap(LIMITED, 3, {GAP: gap}, episodes(*engines))
