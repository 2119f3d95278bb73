"""Compares losses and advantages with Tunix on the same arrays: `make parity`.

Tunix's own functions run, with given numbers instead of the outputs of its models: the policy
losses of GRPO and PPO, the value loss, the sums, GAE and DPO. Where Tunix and this project differ
on purpose, a test says why and by how much.

The version 0.1.5 is the newest that fits our pinned versions: 0.1.7 needs safetensors below 0.8.
"""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.advantage.gae import GAE
from rl4p.advantage.grpo import GRPO
from rl4p.base.types import Rewards
from rl4p.learner.critic import Shared
from rl4p.learner.entropy import Bonus
from rl4p.learner.kl import Fixed, kl_estimate
from rl4p.learner.update_options import aggregation_weights
from rl4p.update.dpo import DPO
from rl4p.update.gspo import GSPO
from rl4p.update.ppo import PPO

pytestmark = [
    pytest.mark.parity,
    pytest.mark.mixed_dtypes,  # Tunix mixes types
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # from packages that Tunix imports
]
REWARDS = (1.0, 0.0, 0.5, 0.0, 2.0, 0.25, 1.0, 0.0)


@pytest.fixture(scope="module")
def tunix():
    """Returns Tunix's modules; their import needs no device and no network."""
    pytest.importorskip("tunix")
    from tunix.rl import common, function_registry
    from tunix.rl.grpo import dapo_learner, grpo_learner
    from tunix.rl.ppo import ppo_helpers, ppo_learner
    from tunix.sft.dpo import dpo_trainer

    return SimpleNamespace(
        common=common,
        registry=function_registry,
        grpo=grpo_learner,
        dapo=dapo_learner,
        ppo=ppo_learner,
        helpers=ppo_helpers,
        dpo=dpo_trainer,
    )


@pytest.fixture(autouse=True)
def forwards(tunix, monkeypatch):
    """Replaces Tunix's forwards: a "model" is the array that the forward returns."""

    def logprobs(model, *_, return_logits=False, **__):
        return (model, LOGITS) if return_logits else model

    def values(model, *_, **__):  # values of all tokens; the last one predicts nothing
        return jnp.pad(model, ((0, 0), (1, 1)))

    monkeypatch.setattr(tunix.common, "compute_per_token_logps", logprobs)
    monkeypatch.setattr(tunix.common, "compute_score", values)


LOGITS = np.random.default_rng(1).normal(0, 1, (8, 7, 11)).astype(np.float32)


def example(module, numbers, **fields):
    """Returns Tunix's training example with these numbers."""
    return module.TrainExample(
        prompt_ids=jnp.ones((8, 2), jnp.int32),
        prompt_mask=jnp.ones((8, 2), bool),
        completion_ids=jnp.ones(numbers.mask.shape, jnp.int32),
        completion_mask=jnp.asarray(numbers.mask, jnp.int32),
        ref_per_token_logps=jnp.asarray(numbers.reference),
        old_per_token_logps=jnp.asarray(numbers.proximal),
        **{"advantages": jnp.asarray(numbers.advantages)} | fields,
    )


def theirs(loss, x):
    """Returns Tunix's loss at x, and its slope."""
    with jax.numpy_rank_promotion("allow"):
        value, slope = jax.value_and_grad(lambda x: loss(x)[0])(jnp.asarray(x))
    return SimpleNamespace(loss=float(value), slope=np.asarray(slope))


@pytest.fixture
def their_grpo(tunix):
    def evaluate(numbers, config):
        fn, given = tunix.registry.get_policy_loss_fn("grpo"), example(tunix.grpo, numbers)
        return theirs(lambda x: fn(x, given, config, 0, 1), numbers.logprobs)

    return evaluate


def assert_same(ours, theirs, name="logprobs"):
    assert np.abs(theirs.slope).max() > 1e-3
    assert ours.loss == pytest.approx(theirs.loss, abs=1e-5)
    np.testing.assert_allclose(getattr(ours, name), theirs.slope, rtol=0, atol=1e-5)


AGGREGATIONS = {
    "token-mean": "token_mean",
    "sequence-mean-token-mean": "sequence_mean_token_mean",
    "sequence-mean-token-sum-norm": "sequence_mean_token_sum",  # norm is the number of rows
}


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_grpo(tunix, numbers, our_loss, their_grpo, aggregation, beta):
    config = tunix.grpo.GRPOConfig(loss_agg_mode=aggregation, beta=beta)
    ours = our_loss(numbers, PPO(aggregation=AGGREGATIONS[aggregation]), kl=Fixed(beta=beta))
    assert_same(ours, their_grpo(numbers, config))


def test_dapo(tunix, numbers, our_loss, their_grpo):
    ours = our_loss(numbers, PPO(clip_high=0.28))
    assert_same(ours, their_grpo(numbers, tunix.dapo.DAPOConfig()))


def test_dr_grpo(tunix, numbers, our_loss):
    """`norm`, rows x length, gives the sum over a fixed length; the loss has no option for it."""
    per_token = jnp.asarray(numbers.logprobs)
    total = tunix.common.aggregate_loss(
        per_token, jnp.asarray(numbers.mask), "sequence-mean-token-sum-norm", norm=8 * 9
    )
    weights_BT = aggregation_weights(jnp.asarray(numbers.mask), "constant", 9)
    assert float(jnp.sum(weights_BT * per_token)) == pytest.approx(float(total), abs=1e-5)


def test_gspo_token(tunix, numbers, our_loss, their_grpo):
    config = tunix.grpo.GRPOConfig(loss_algo="gspo-token", beta=0.0, epsilon=0.04)
    ours = our_loss(numbers, GSPO(form="token", clip_low=0.04, clip_high=0.04))
    assert_same(ours, their_grpo(numbers, config))


@pytest.mark.parametrize("dual_clip", [None, 1.2])
def test_ppo(tunix, numbers, our_loss, dual_clip):
    given = example(tunix.ppo, numbers, advantages=per_token(numbers), **critics(numbers))
    fn = tunix.registry.get_policy_loss_fn("ppo")
    found = theirs(lambda x: fn(x, given, 0.2, 0.28, dual_clip, 0.1, 0, 1), numbers.logprobs)
    entropy = tunix.helpers.compute_entropy_from_logits(jnp.asarray(LOGITS))
    same = SimpleNamespace(**vars(numbers) | {"entropy": np.asarray(entropy)})
    ours = our_loss(same, PPO(clip_high=0.28, dual_clip=dual_clip), entropy=Bonus(alpha=0.1))
    assert_same(ours, found)


def per_token(numbers):
    return jnp.asarray(np.broadcast_to(numbers.advantages[:, None], numbers.mask.shape))


def critics(numbers):
    return {
        "old_values": jnp.asarray(numbers.old_values),
        "returns": jnp.asarray(numbers.returns),
    }


def test_value_loss(tunix, numbers, our_loss):
    given = example(tunix.ppo, numbers, **critics(numbers))
    found = theirs(lambda x: tunix.ppo.ppo_value_loss_fn(x, given, 0.3, 0, 1), numbers.values)
    still = SimpleNamespace(**vars(numbers) | {"advantages": np.zeros(8, np.float32)})
    ours = our_loss(still, PPO(), critic=Shared(coefficient=1.0, clip=0.3))
    assert_same(ours, found, "values")


@pytest.mark.parametrize(
    ("method", "estimator"), [("kl", "k1"), ("mse_kl", "k2"), ("low_var_kl", "k3")]
)
def test_divergence(tunix, numbers, method, estimator):
    args = jnp.asarray(numbers.logprobs), jnp.asarray(numbers.reference)
    np.testing.assert_allclose(
        kl_estimate(*args, estimator),
        tunix.common.compute_kl_divergence(*args, method=method),
        atol=1e-5,
    )


# Preferences: rows 2k and 2k + 1 are the chosen and the rejected response to prompt k.


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_dpo(tunix, monkeypatch, numbers, our_loss, smoothing):
    signs = np.tile(np.array([1, -1], np.float32), 4)
    pairs = SimpleNamespace(**vars(numbers) | {"advantages": signs, "groups": np.arange(8) // 2})

    def sums(logprobs_BT, *_):
        total_B = jnp.sum(jnp.where(pairs.mask, logprobs_BT, 0), axis=1)
        return total_B[0::2], total_B[1::2]

    monkeypatch.setattr(tunix.dpo, "compute_logps", sums)
    chosen, rejected = sums(pairs.reference)
    fields = dict.fromkeys(
        ("input_ids", "positions", "attention_mask", "logits_to_keep", "completion_mask")
    )
    given = SimpleNamespace(ref_chosen_logps=chosen, ref_rejected_logps=rejected, **fields)
    found = theirs(
        lambda x: tunix.dpo.dpo_loss_fn(x, given, beta=0.3, label_smoothing=smoothing),
        pairs.logprobs,
    )
    assert_same(our_loss(pairs, DPO(beta=0.3, label_smoothing=smoothing), group_size=2), found)


# Advantages.


def test_grpo_advantages(tunix, numbers, batch_of, make_rewards):
    estimator = tunix.registry.get_advantage_estimator("grpo")
    found = np.asarray(estimator(rewards=jnp.asarray(REWARDS), num_generations=4))
    ours = GRPO()(batch_of(numbers).trajectories, make_rewards(REWARDS))
    assert np.abs(found).max() > 0.5
    np.testing.assert_allclose(ours, np.where(numbers.mask, found[:, None], 0), atol=1e-5)


def gae(tunix, numbers):
    """Returns Tunix's advantages and returns, with the reward on the last token."""
    lengths = numbers.mask.sum(axis=1)
    rewards = np.zeros(numbers.mask.shape, np.float32)
    rewards[np.arange(8), lengths - 1] = REWARDS
    values = np.where(numbers.mask, numbers.values, 0)
    with jax.numpy_rank_promotion("allow"):
        found = tunix.helpers.compute_gae_advantages(
            jnp.asarray(rewards),
            jnp.asarray(values),
            jnp.asarray(numbers.mask, jnp.int32),
            0.9,
            0.8,
        )
    return [np.asarray(x) for x in found]


def our_rewards():
    total_B = jnp.asarray(REWARDS)
    return Rewards(total_B=total_B, terms={}, valid_B=jnp.ones(8, bool))


def test_gae(tunix, numbers, batch_of):
    phase = GAE(gamma=0.9, lambda_policy=0.8, lambda_value=0.8, whiten=False)
    scores = {"values": jnp.asarray(numbers.values)}
    trajectories, (_, returns) = batch_of(numbers).trajectories, gae(tunix, numbers)
    found = phase.returns(trajectories, our_rewards(), scores)
    advantages = phase(trajectories, our_rewards(), scores=scores)
    wanted = np.where(numbers.mask, returns, 0)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        advantages, np.where(numbers.mask, returns - numbers.values, 0), rtol=0, atol=1e-5
    )


# Deliberate differences.


def test_whitening_divides_by_the_count(tunix, numbers, batch_of):
    # Tunix's variance divides by count - 1, which hardly matters for thousands of tokens, and has
    # the epsilon 1e-8 under the root. Here the variance divides by the count, and 1e-4 is added to
    # the deviation, as in every other advantage.
    phase = GAE(gamma=0.9, lambda_policy=0.8)
    ours = phase(
        batch_of(numbers).trajectories,
        our_rewards(),
        scores={"values": jnp.asarray(numbers.values)},
    )
    white, returns = gae(tunix, numbers)
    plain = (returns - numbers.values)[numbers.mask]
    wanted = white[numbers.mask] * np.sqrt(plain.var(ddof=1) + 1e-8) / (plain.std() + 1e-4)
    np.testing.assert_allclose(np.asarray(ours)[numbers.mask], wanted, atol=1e-5)
    assert np.abs(wanted / white[numbers.mask] - 1).max() > 0.01


def test_a_row_without_loss_tokens_is_no_sequence(tunix, numbers, our_loss, their_grpo):
    """Tunix's mean is over all rows, including rows without a token; ours leaves these out."""
    mask = numbers.mask.copy()
    mask[[1, 4]] = False
    fewer = SimpleNamespace(**vars(numbers) | {"mask": mask})
    found = their_grpo(fewer, tunix.grpo.GRPOConfig(beta=0.0))
    ours = our_loss(fewer, PPO(aggregation="sequence_mean_token_mean"))
    assert ours.loss == pytest.approx(found.loss * 8 / 6, abs=1e-5)
    np.testing.assert_allclose(ours.logprobs, found.slope * 8 / 6, rtol=0, atol=1e-5)


def test_a_ratio_beyond_float32_stays_finite(tunix, numbers, our_loss, their_grpo):
    """Tunix bounds the log-ratio in gspo-token only; we clamp it to +-20 everywhere."""
    logprobs = numbers.logprobs.copy()
    logprobs[1, 0] = numbers.proximal[1, 0] + 100
    far = SimpleNamespace(**vars(numbers) | {"logprobs": logprobs})
    assert not np.isfinite(their_grpo(far, tunix.grpo.GRPOConfig(beta=0.0)).loss)
    ours = our_loss(far, PPO(aggregation="sequence_mean_token_mean"))
    assert np.isfinite(ours.loss)
    assert ours.logprobs[1, 0] == 0


def test_gspo_is_clamped_further_out(tunix, numbers, our_loss, their_grpo):
    # Tunix clamps a mean log-ratio at 10, and so does verl; we clamp at 20. The bound only keeps
    # the exponential finite; it is not a part of the loss.
    logprobs = numbers.proximal.copy()
    logprobs[1] += 15
    far = SimpleNamespace(**vars(numbers) | {"logprobs": logprobs})
    config = tunix.grpo.GRPOConfig(loss_algo="gspo-token", beta=0.0)
    ours = our_loss(far, GSPO(form="token", clip_low=0.2, clip_high=0.2))
    difference = 0.7 * (np.exp(15) - np.exp(10)) / 8
    assert ours.loss - their_grpo(far, config).loss == pytest.approx(difference, rel=1e-5)


def test_equal_rewards_give_exactly_nothing(tunix, numbers, batch_of, make_rewards):
    # Tunix divides the rounding error of the mean by 1e-4; here a comparison finds equal rewards.
    rewards = (0.85, 0.85, 0.85, 1.0, 1.0, 1.0)
    estimator = tunix.registry.get_advantage_estimator("grpo")
    found = np.asarray(estimator(rewards=jnp.asarray(rewards), num_generations=3))
    assert 0 < np.abs(found).max() < 0.01
    six = jax.tree.map(lambda x: x[:6], batch_of(numbers).trajectories)
    six = replace(six, group_ids_B=jnp.asarray([0, 0, 0, 1, 1, 1], jnp.int32))
    assert (GRPO()(six, make_rewards(rewards)) == 0).all()
