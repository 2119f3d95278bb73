"""Tests that the loss and its gradient stay the same when the responses of a group share rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import Sampling, TrainingBatch
from rl4p.learner.correction import SequenceMask
from rl4p.learner.critic import Shared
from rl4p.learner.entropy import TopTokens
from rl4p.learner.gradient_step import forward_backward
from rl4p.learner.kl import Fixed
from rl4p.learner.optimizer import SGD
from rl4p.learner.packing import Packing
from rl4p.rollout.sampler import answers
from rl4p.update.dpo import DPO
from rl4p.update.gspo import GSPO
from rl4p.update.ppo import PPO

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


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if "gspo" in x else pytest.mark.slow) for x in CASES]
)
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
