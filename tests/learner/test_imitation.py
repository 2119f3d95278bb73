"""Tests of the likelihood terms: their weights, and the gradient of a whole step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Rewards, Sampling
from rl4p.configuration import compose
from rl4p.learner.gradient_step import gradient_step
from rl4p.learner.objective import observed, with_likelihood
from rl4p.learner.optimizer import SGD
from rl4p.learner.update_options import aggregation_weights
from rl4p.loop.evaluation import judged
from rl4p.protocols.traits import UpdateTraits
from rl4p.runs.build import build_phases
from rl4p.update.reinforce import Reinforce
from rl4p.update.sft import SFT

# A row of two segments: a prompt, a turn, what the environment said, a turn; then a new reading of
# another prompt with a turn and an answer to it. The last column is padding.
SEGMENTS = [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 0]
CHOSEN = [0, 0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0]
OBSERVED = [0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0]
OPTIMIZER = SGD(learning_rate=0.0, momentum=0.5, max_grad_norm=0.0)  # its trace is the gradient


def changed(batch, **fields):
    trajectories = dataclasses.replace(batch.trajectories, **fields)
    return dataclasses.replace(batch, trajectories=trajectories)


def test_what_the_environment_said_stands_after_the_first_turn_of_its_segment(make_batch):
    batch = make_batch([[1.0] * 12], np.zeros((1, 12)), mask=[CHOSEN])
    batch = changed(batch, segment_ids_BT=jnp.int32([SEGMENTS]))
    np.testing.assert_array_equal(observed(batch.trajectories), np.bool_([OBSERVED]))


def test_the_weights_of_both_terms(make_batch):
    """The loss of a token has weight x factor of -log pi: 0.3 / 4 and 0.7 / 6."""
    masks = [CHOSEN, [0] * 4 + [1] * 4 + [0] * 4, [0] * 12]
    batch = make_batch([[1.0] * 12] * 3, np.zeros((3, 12)), mask=masks)
    batch = changed(batch, segment_ids_BT=jnp.int32([SEGMENTS, [1] * 10 + [0] * 2, SEGMENTS]))
    batch = dataclasses.replace(batch, scores=batch.scores | {"right": jnp.bool_([0, 1, 1])})
    weights_BT = aggregation_weights(batch.loss_mask_BT, "sequence_mean_token_mean", None)
    traits = UpdateTraits(likelihood_loss=0.3, observation_loss=0.7)
    after, weights = with_likelihood(traits, batch, weights_BT)
    both = np.asarray(weights * after.scores["imitation"])
    said = [OBSERVED, [0] * 8 + [1] * 2 + [0] * 2, [0] * 12]  # the third row has no loss
    expected = 0.3 / 4 * np.array([[0] * 12, masks[1], [0] * 12]) + 0.7 / 6 * np.array(said)
    np.testing.assert_allclose(both, expected, rtol=1e-6)
    inside = np.bool_(masks)
    np.testing.assert_array_equal(np.asarray(weights)[inside], np.asarray(weights_BT)[inside])
    scored = after.trajectories.response_mask_BT
    np.testing.assert_array_equal(scored, inside | np.bool_(said))
    np.testing.assert_array_equal(after.loss_mask_BT, batch.loss_mask_BT)


@pytest.fixture
def gradient(policy, params, make_objective, make_state):
    def gradient(update, batch):
        objective = make_objective(update, sampling=Sampling(temperature=0.7))
        state = make_state(params, OPTIMIZER)
        coefficients = {"kl": np.float32(0), "entropy": np.float32(0)}
        after, metrics = gradient_step(objective, OPTIMIZER, {}, state, batch, coefficients)
        leaves = [np.asarray(x).ravel() for x in jax.tree.leaves(after.optimizer_state)]
        return np.concatenate(leaves), metrics

    return gradient


@pytest.mark.slow
@pytest.mark.parametrize(
    "tokens",
    [64, pytest.param(2048, marks=pytest.mark.slow)],
    ids=["microbatches", "one"],
)
def test_the_gradient_is_that_of_supervised_training_on_these_tokens(batch, gradient, tokens):
    """Each term alone, without advantages: its coefficient times the gradient of update=sft."""
    mask = np.asarray(batch.loss_mask_BT)
    turns = mask & (np.arange(mask.shape[1]) % 3 != 1)  # the rest of the response is observed
    plain = dataclasses.replace(
        changed(batch, response_mask_BT=jnp.asarray(turns)),
        loss_mask_BT=jnp.asarray(turns),
        advantages_BT=jnp.zeros(mask.shape),
    )
    good = np.arange(len(mask)) % 2 == 0
    plain = dataclasses.replace(plain, scores=plain.scores | {"right": jnp.asarray(good)})
    said = np.asarray(observed(plain.trajectories)) & turns.any(axis=1, keepdims=True)
    assert said.sum() > 5
    options = {"tokens_per_microbatch": tokens, "aggregation": "sequence_mean_token_mean"}
    for name, coefficient, own in (
        ("observation_loss", 0.05, said),
        ("likelihood_loss", 0.1, turns & good[:, None]),
    ):
        found, metrics = gradient(Reinforce(**options | {name: coefficient}), plain)
        supervised = dataclasses.replace(
            changed(plain, response_mask_BT=jnp.asarray(own)), loss_mask_BT=jnp.asarray(own)
        )
        expected, of_sft = gradient(SFT(aggregation="token_mean"), supervised)
        assert np.linalg.norm(expected) > 0.01
        np.testing.assert_allclose(found, coefficient * expected, rtol=1e-4, atol=1e-7)
        wanted = coefficient * float(of_sft["update/loss"])
        assert float(metrics["update/imitation_loss"]) == pytest.approx(wanted, rel=1e-5)
        assert float(metrics["update/loss"]) == pytest.approx(wanted, rel=1e-5)


def test_a_sample_is_right_by_the_grade_of_the_deciding_term():
    rewards = Rewards(
        total_B=np.zeros(4, np.float32),
        terms={"correct": np.float32([1, 0.5, np.nan, 1])},
        valid_B=np.array([True, True, True, False]),
    )
    assert judged(rewards, "correct")[0] == [True, False, False, False]
    with pytest.raises(InputError, match=r"evaluation\.term=exact is not a term of the reward"):
        judged(rewards, "exact")


@pytest.mark.slow
def test_what_has_no_effect_is_refused():
    with pytest.raises(InputError, match="has no environment that answers"):
        build_phases(compose(["update.observation_loss=0.05"]))
    words = ["update=reward_model", "rollout=preferences", "reward=preferences"]
    words += ["advantage=preference", "update.likelihood_loss=0.1"]
    with pytest.raises(InputError, match=r"update\.likelihood_loss=0\.1 would have no effect"):
        build_phases(compose(words))
