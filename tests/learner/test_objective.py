import dataclasses
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import Sampling
from rl4p.learner.correction import OffPolicyMask, TokenTruncate
from rl4p.learner.critic import Shared
from rl4p.learner.entropy import Bonus, TopTokens
from rl4p.learner.kl import Fixed
from rl4p.learner.logprobs import trunk
from rl4p.learner.objective import Objective, token_loss
from rl4p.update.ppo import PPO
from rl4p.update.reinforce import Reinforce


def test_an_objective_is_compared_by_its_options(make_objective):
    """It is a static argument of a compiled step; an equal objective must not compile it again."""
    ours, same = make_objective(PPO(clip_low=0.3)), make_objective(PPO(clip_low=0.3))
    assert isinstance(ours, Objective)
    assert ours == same
    assert hash(ours) == hash(same)
    assert ours != make_objective(PPO(clip_low=0.2))


B, T = 8, 16
SAMPLING = Sampling(temperature=0.7)


@pytest.fixture(scope="module")
def joined(policy, params, batch, make_objective, score_all):
    """Losses and metrics of tokens, 0 off the loss mask, where rows 1 and 5 were not sampled."""
    signs_B1 = np.where(np.arange(B) % 2, 1, -1).astype(np.float32)[:, None]
    batch = dataclasses.replace(batch, advantages_BT=signs_B1 * batch.advantages_BT)
    version = jnp.zeros((B, T), jnp.int32).at[jnp.asarray([1, 5])].set(-1)
    trajectories = dataclasses.replace(batch.trajectories, policy_version_BT=version)
    tokens = score_all(policy.decoder, params, trajectories, SAMPLING)
    random, mask = np.random.default_rng(6), batch.loss_mask_BT
    drawn = random.normal(0, 0.3, (3, B, T)).astype(np.float32)
    scores = {
        "proximal_logprobs": tokens.logprobs_BT + drawn[0],
        "reference_logprobs": tokens.logprobs_BT + drawn[1],
        "values": drawn[2],
        "returns": 1 + drawn[0],
        "selected": np.broadcast_to(np.arange(T) % 2 == 0, (B, T)),
    }
    behaviour = jnp.asarray(scores["proximal_logprobs"]) + drawn[2]
    trajectories = dataclasses.replace(trajectories, behaviour_logprobs_BT=behaviour)
    scores = {name: jnp.where(mask, x, jnp.nan) for name, x in scores.items() if name != "selected"}
    scores["selected"] = mask & (np.arange(T) % 2 == 0)
    micro = dataclasses.replace(batch, trajectories=trajectories, scores=scores)
    coefficients = {"kl": jnp.float32(0.3), "entropy": jnp.float32(0.2)}

    def joined(trained=params, **phases):
        objective = make_objective(Reinforce(), sampling=SAMPLING, **phases)

        def run(trained, micro):
            return token_loss(objective, trained, micro, coefficients)[:2]

        found = jax.jit(run)(trained, micro)
        return jax.tree.map(lambda x: np.where(mask, x, 0), jax.device_get(found))

    numbers = {name: np.where(mask, x, 0) for name, x in scores.items()} | {
        "logprobs": np.where(mask, tokens.logprobs_BT, 0),
        "entropy": np.where(mask, tokens.entropy_BT, 0),
        "behaviour": np.where(mask, behaviour, 0),
        "reinforce": np.where(mask, -batch.advantages_BT * tokens.logprobs_BT, 0),
        "advantages": np.where(mask, batch.advantages_BT, 0),
        "mask": np.asarray(mask),
        "sampled": np.asarray(mask & (version >= 0)),
    }
    return joined, numbers


@pytest.mark.slow
def test_a_divergence_reaches_the_tokens_that_lose_their_policy_gradient(joined):
    """What no policy sampled has no importance weight: neither of the loss nor of the penalty."""
    run, x = joined
    loss_BT, metrics = run(
        entropy=TopTokens(),
        correction=TokenTruncate(cap=1.1),
        kl=Fixed(estimator="k2", importance_weight=True),
    )
    weight = np.where(x["sampled"], np.exp(x["proximal_logprobs"] - x["behaviour"]), 1.0)
    of_policy = np.where(x["sampled"], np.exp(x["logprobs"] - x["behaviour"]), 1.0)
    penalty = of_policy * np.square(x["logprobs"] - x["reference_logprobs"]) / 2
    expected = x["selected"] * np.minimum(weight, 1.1) * x["reinforce"] + 0.3 * penalty
    assert (weight > 1.1).any()
    np.testing.assert_allclose(loss_BT, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["kl"], penalty, rtol=1e-3, atol=1e-5)
    gap = np.where(x["sampled"], x["proximal_logprobs"] - x["behaviour"], 0)
    np.testing.assert_allclose(metrics["logprob_gap"], np.abs(gap), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["weight"], x["mask"] * weight, rtol=1e-4)
    np.testing.assert_allclose(metrics["squared_weight"], x["mask"] * weight**2, rtol=1e-4)


def test_a_penalty_keeps_the_policy_near_its_sampler(joined):
    """The penalty is 0.15 (log pi / mu)^2, and nothing on tokens without a sampler."""
    run, x = joined
    loss_BT, metrics = run(
        correction=OffPolicyMask(threshold=0.0), kl=Fixed(estimator="k2", against="behaviour")
    )
    gap = np.where(x["sampled"], np.float64(x["logprobs"]) - x["behaviour"], 0.0)
    mean = gap.sum(axis=1, keepdims=True) / np.maximum(x["sampled"].sum(axis=1, keepdims=True), 1)
    dropped = (x["advantages"] < 0) & (mean < 0)
    assert 0 < (x["mask"] & dropped).sum() < x["mask"].sum()
    np.testing.assert_allclose(
        loss_BT, np.where(dropped, 0, x["reinforce"]) + 0.15 * gap**2, rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(metrics["kl"], gap**2 / 2, rtol=1e-3, atol=1e-5)


def test_a_bonus_is_not_corrected_and_a_divergence_in_the_reward_is_not_in_the_loss(joined):
    run, x = joined
    loss_BT, metrics = run(
        entropy=Bonus(),
        correction=TokenTruncate(cap=1.1),
        kl=Fixed(estimator="k2", placement="in_reward"),
    )
    weight = np.where(x["sampled"], np.exp(x["proximal_logprobs"] - x["behaviour"]), 1.0)
    expected = np.minimum(weight, 1.1) * x["reinforce"] - 0.2 * x["entropy"]
    np.testing.assert_allclose(loss_BT, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(metrics["entropy"], x["entropy"], rtol=1e-4)
    assert "kl" not in metrics


@pytest.mark.slow
def test_a_critics_loss_is_added_and_what_explains_its_variance_is_summed(
    joined, policy, params, batch
):
    """The values are those of a head that reads the trunk one token before."""
    run, x = joined
    critic = Shared(coefficient=0.5, clip=0.1)
    kernel = np.random.default_rng(7).normal(0, 0.3, 32).astype(np.float32)
    head = {"value": {"kernel": jnp.asarray(kernel), "bias": jnp.float32(0.25)}}
    hidden_BTD = jax.jit(lambda p: trunk(policy.decoder, p, batch.trajectories))(params)
    values = np.where(x["mask"], np.pad((hidden_BTD @ kernel)[:, :-1] + 0.25, ((0, 0), (1, 0))), 0)
    loss_BT, metrics = run(params | {"critic": head}, critic=critic)
    near = np.clip(values, x["values"] - 0.1, x["values"] + 0.1)
    square = np.maximum((values - x["returns"]) ** 2, (near - x["returns"]) ** 2)
    np.testing.assert_allclose(metrics["value_loss"], 0.25 * square, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(loss_BT, x["reinforce"] + 0.25 * square, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(metrics["returns"], x["returns"], rtol=1e-5)
    np.testing.assert_allclose(metrics["squared_returns"], x["returns"] ** 2, rtol=1e-5)
    errors = (x["returns"] - values) ** 2
    np.testing.assert_allclose(metrics["squared_value_errors"], errors, rtol=1e-3, atol=1e-5)


@dataclass(frozen=True, kw_only=True)
class Reporting(PPO):
    """Reports what it is given."""

    def __call__(self, logprobs_BT, batch):
        proximal_BT = batch.scores["proximal_logprobs"]
        return logprobs_BT, {"logprobs": logprobs_BT, "proximal": proximal_BT}


@pytest.mark.slow
def test_a_loss_reads_zeros_where_there_is_none(policy, params, batch, make_objective):
    """Whatever the padding holds: -inf is a token outside the support."""
    mask = batch.loss_mask_BT
    scores = {"proximal_logprobs": jnp.where(mask, batch.scores["proximal_logprobs"], -jnp.inf)}
    objective = make_objective(Reporting(), sampling=SAMPLING)

    def run(params, micro):
        return token_loss(objective, params, micro, {})[:2]

    _, seen = jax.jit(run)(params, dataclasses.replace(batch, scores=scores))
    for name in ("logprobs", "proximal"):
        np.testing.assert_array_equal(seen[name] == 0, ~np.asarray(mask))
    np.testing.assert_array_equal(seen["proximal"], batch.scores["proximal_logprobs"])
