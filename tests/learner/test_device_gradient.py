"""Tests that the loss and its gradient stay the same when the responses of a group share rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import Sampling, TrainingBatch
from rl4p.distributed.mesh import ONE_DEVICE
from rl4p.learner.correction import SequenceMask
from rl4p.learner.critic import Shared
from rl4p.learner.entropy import TopTokens
from rl4p.learner.gradient_step import forward_backward, optimizer_step
from rl4p.learner.kl import Fixed
from rl4p.learner.logprobs import trunk_and_load
from rl4p.learner.optimizer import SGD
from rl4p.learner.packing import Packing
from rl4p.model.decoder import Decoder
from rl4p.model.decoder_config import ConvolutionConfig
from rl4p.model.pattern import load_order
from rl4p.model.router import Router, balance_loss
from rl4p.rollout.sampler import answers
from rl4p.update.dpo import DPO
from rl4p.update.gspo import GSPO
from rl4p.update.ppo import PPO
from rl4p.update.reinforce import Reinforce
from rl4p.update.sft import SFT

PROMPTS, R = (64, 17, 40), 128
LENGTHS = {4: (128, 1, 91, 9, 62, 37, 20, 0, 5, 26, 31, 8), 2: (5, 30, 9, 9, 128, 1)}
SAMPLING = Sampling(temperature=0.8)
COEFFICIENTS = {"kl": jnp.float32(0.3), "entropy": jnp.float32(0.1)}


@pytest.fixture(scope="module")
def make_batch(policy, make_prompt, make_completions):
    """Returns rows of three groups in their order, and scores of every token."""

    def make(group_size):
        random, lengths = np.random.default_rng(4), LENGTHS[group_size]
        prompts = [make_prompt(tuple(random.integers(0, 256, n).tolist())) for n in PROMPTS]
        tokens = random.integers(0, 256, (len(lengths), R), np.int32)
        made, _ = answers(policy, prompts, make_completions(tokens, lengths, -5.5), R)
        assert (made.group_size, made.prompt_columns) == (group_size, 64)
        made = rewritten(made)
        mask = jnp.asarray(made.response_mask_BT)
        names = ("reference_logprobs", "proximal_logprobs", "returns", "values", "entropy")
        drawn = random.normal(-5.5, 0.3, (len(names), *mask.shape)).astype(np.float32)
        return TrainingBatch(
            trajectories=jax.tree.map(jnp.asarray, made),
            advantages_BT=jnp.where(mask, random.normal(size=(len(lengths), 1)), 0.0),
            loss_mask_BT=mask,
            scores={name: jnp.where(mask, x, 0) for name, x in zip(names, drawn, strict=True)},
        )

    return make


def rewritten(trajectories):
    """Returns the rows, of which the last columns of two begin anew, as after a rewritten turn."""
    segments, positions = (
        np.array(x) for x in (trajectories.segment_ids_BT, trajectories.positions_BT)
    )
    for row, column in ((0, 150), (2, 140), (4, 70)):
        segments[row, column:] *= 2
        positions[row, column:] -= column - 64
    return dataclasses.replace(trajectories, segment_ids_BT=segments, positions_BT=positions)


@pytest.fixture
def gradient(params, make_objective, make_state, monkeypatch):
    """Returns the gradient and its sums, and of how many rows the trunk ran how many sequences."""

    def of(batch, update, group_size, params=params, **phases):
        packings = []
        of_groups = Packing.of_groups

        def record(*arguments):
            packing = of_groups(*arguments)
            jax.debug.callback(lambda x: packings.append(x), packing)
            return packing

        monkeypatch.setattr(Packing, "of_groups", record)
        objective = make_objective(update, sampling=SAMPLING, group_size=group_size, **phases)
        state = make_state(params, SGD())
        found = jax.device_get(forward_backward(objective, {}, state, batch, COEFFICIENTS))
        jax.effects_barrier()
        monkeypatch.undo()
        rows = [len(np.unique(x.rows_B[x.lengths_B > 0])) for x in packings]
        return found, rows

    return of


def alone(batch):
    """Returns the same rows, of whose groups nothing is known."""
    known = {"group_size": 1, "prompt_columns": 0}
    return dataclasses.replace(batch, trajectories=dataclasses.replace(batch.trajectories, **known))


CASES = {
    "gspo, sequence_mask": {
        "update": GSPO(tokens_per_microbatch=520, microbatch_widths=4),
        "correction": SequenceMask(low=0.95, high=1.05),
    },
    "ppo, kl, top_tokens": {
        "update": PPO(
            tokens_per_microbatch=520, microbatch_widths=4, aggregation="sequence_mean_token_mean"
        ),
        "kl": Fixed(importance_weight=True),
        "entropy": TopTokens(share=0.5),
    },
    "one loop": {"update": PPO(tokens_per_microbatch=2000, microbatch_widths=1)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_responses_that_share_rows_have_the_loss_of_rows_of_their_own(name, make_batch, gradient):
    batch, case = make_batch(4), CASES[name]
    (ours, sums, _), rows = gradient(batch, group_size=4, **case)
    (theirs, expected, _), nothing = gradient(alone(batch), group_size=4, **case)
    assert nothing == []
    assert len(rows) == 1
    assert rows[0] <= 7  # 12 sequences, one of which has the last token of the prompt alone
    assert sums.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(sums[key], value, rtol=2e-5, atol=1e-5, err_msg=key)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert np.linalg.norm(b) > 0
        assert np.linalg.norm(a - b) <= 2e-5 * np.linalg.norm(b)


@pytest.mark.slow
def test_pairs_do_not_share_rows(make_batch, gradient):
    """Both rows of a pair are in one microbatch, and a loss may read them together."""
    batch, update = make_batch(2), DPO(tokens_per_microbatch=200)
    batch = dataclasses.replace(
        batch, trajectories=dataclasses.replace(batch.trajectories, group_size=6)
    )
    assert gradient(batch, update, 2)[1] == []


@pytest.mark.slow
def test_a_critic_has_rows_of_one_sequence(policy, params, make_batch, gradient):
    """Its estimates may depend on the row as a whole."""
    critic = Shared()
    params = params | {"critic": critic.init(policy.decoder, params)}
    assert gradient(make_batch(4), PPO(), 4, params=params, critic=critic)[1] == []


@pytest.fixture(scope="module")
def mixture(policy):
    """Returns a decoder with experts, of which the first layer has none, and its parameters."""
    config = dataclasses.replace(
        policy.decoder.config,
        experts=4,
        chosen_experts=2,
        expert_width=24,
        layers=3,
        feed_forwards=("gated", "experts", "experts"),
    )
    decoder = Decoder(config=config)
    return decoder, jax.tree.map(lambda x: 3 * x, decoder.init(jax.random.key(0)))


@pytest.mark.slow
@pytest.mark.parametrize("pack", [False, True])
def test_the_loss_of_the_routers_is_that_of_all_tokens_of_a_minibatch(
    mixture, make_trajectories, make_objective, make_state, pack
):
    """Whatever the microbatches are, and the padding."""
    decoder, params = mixture

    def step(coefficient, tokens, right=0):
        trajectories = make_trajectories(right=right)
        mask = trajectories.response_mask_BT
        options = {"tokens_per_microbatch": tokens, "router_loss": coefficient}
        update = SFT(pack=True, **options) if pack else Reinforce(**options)
        batch = TrainingBatch(
            trajectories=trajectories,
            advantages_BT=jnp.where(mask, 1.0, 0.0),
            loss_mask_BT=mask,
            scores={},
        )
        objective = make_objective(update, decoder=decoder)
        return forward_backward(objective, {}, make_state(params, SGD()), batch, {})

    def balance(params):
        load = trunk_and_load(decoder, params, make_trajectories())[1]
        assert load.chosen_ME.shape == (2, 4)
        return balance_loss(load, jax.lax.stop_gradient(load))

    expected, of_balance = jax.jit(jax.value_and_grad(balance))(params)
    assert 2.05 < expected < 4
    policy_only = step(0.0, 64)
    assert {"router_loss", "chosen_ME"}.isdisjoint(policy_only.sums)
    for tokens, right in ((1000, 0), (16, 0), (40, 5)):
        both = step(0.5, tokens, right)
        np.testing.assert_allclose(both.sums["router_loss"], expected, rtol=1e-5)
        assert "chosen_ME" not in both.sums  # counted for a bias alone
        whole = policy_only.sums["loss"] + 0.5 * expected
        np.testing.assert_allclose(both.sums["loss"], whole, rtol=1e-5)
        ours = jax.tree.map(jnp.subtract, both.params, policy_only.params)
        for x, y in zip(*map(jax.tree.leaves, (ours, of_balance)), strict=True):
            np.testing.assert_allclose(x, 0.5 * y, atol=2e-6)
    assert jnp.abs(of_balance["layers"]["experts"]["router"]).max() > 1e-3


@pytest.mark.slow
def test_biases_of_experts_step_against_the_load_of_a_minibatch(
    policy, make_trajectories, make_objective, make_state
):
    """Each layer chooses other experts; layers of two kinds alternate, and loads with them."""
    config = dataclasses.replace(
        policy.decoder.config,
        experts=4,
        chosen_experts=2,
        expert_width=24,
        layers=5,
        mixers=("convolution", "attention", "convolution", "attention", "attention"),
        feed_forwards=("experts",) * 4 + ("gated",),
        convolution=ConvolutionConfig(),
        router=Router(score="sigmoid", corrected=True),
    )
    assert load_order(config).tolist() == [0, 2, 1, 3]
    decoder = Decoder(config=config)
    params = jax.tree.map(lambda x: 3 * x, decoder.init(jax.random.key(0)))

    def step(params, tokens=1000, right=0, factor=1.0):
        trajectories = make_trajectories(right=right)
        mask = trajectories.response_mask_BT
        update = Reinforce(tokens_per_microbatch=tokens, router_bias_rate=0.25)
        batch = TrainingBatch(
            trajectories=trajectories,
            advantages_BT=jnp.where(mask, factor, 0.0),
            loss_mask_BT=mask,
            scores={},
        )
        objective = make_objective(update, decoder=decoder)
        state = make_state(params, SGD())
        gradient = forward_backward(objective, {}, state, batch, {})
        sums = jax.device_get(gradient.sums)
        state, _ = optimizer_step(SGD(), ONE_DEVICE, state, gradient)
        return np.asarray(state.params["layers"]["experts"]["router_correction"])[:, 0], sums

    load = trunk_and_load(decoder, params, make_trajectories())[1].chosen_ME[np.array([0, 2, 1, 3])]
    expected = 0.25 * np.sign(load.mean(-1, keepdims=True) - load)
    for tokens, right in ((1000, 0), (16, 5)):
        biases, sums = step(params, tokens, right)
        np.testing.assert_array_equal(biases, expected)
        excess = np.mean(load.max(-1) / load.mean(-1) - 1)
        np.testing.assert_allclose(sums["load_excess"], excess, rtol=1e-6)
    assert not step(params, factor=np.nan)[0].any()  # an update that is skipped

    experts = params["layers"]["experts"]
    chosen = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]])
    fixed = {"router": 0 * experts["router"], "router_correction": 9.0 * chosen[:, None]}
    layers = params["layers"] | {"experts": experts | jax.tree.map(jnp.float32, fixed)}
    biases, sums = step(params | {"layers": layers})
    np.testing.assert_array_equal(biases, 9.0 * chosen + 0.25 * (1 - 2 * chosen))
    assert sums["load_excess"] == 1
