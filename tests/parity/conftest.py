"""Fixtures that give the same numbers to a loss of this project and to one of another."""

from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.types import TrainingBatch, TrainState, Trajectories
from rl4p.distributed.partition import DECLARED, vector
from rl4p.learner.gradient_step import forward_backward
from rl4p.learner.logprobs import TokenScores

LENGTHS = (7, 3, 5, 1, 7, 2, 6, 4)  # 35 tokens; two groups of four
ADVANTAGES = (1.2, -0.7, 0.4, -0.9, -1.5, 0.8, 0.0, 0.7)


@pytest.fixture(scope="session")
def numbers():
    """Returns log-probabilities of every kind for eight responses, all different from one another.

    Outside the mask the numbers are not 0.
    """
    random = np.random.default_rng(0)
    shape = (len(LENGTHS), max(LENGTHS))
    proximal = random.uniform(-4, -0.8, shape)
    kinds = {
        "proximal": proximal,
        "logprobs": proximal + random.normal(0, 0.3, shape),
        "behaviour": proximal + random.normal(0, 0.2, shape),
        "reference": proximal + random.normal(0, 0.4, shape),
        "entropy": random.uniform(0.1, 3, shape),
        "values": random.normal(0, 1, shape),
        "old_values": random.normal(0, 1, shape),
        "returns": random.normal(0, 1, shape),
        "advantages": np.array(ADVANTAGES),
    }
    mask = np.arange(shape[1]) < np.array(LENGTHS)[:, None]
    kinds = {name: x.astype(np.float32) for name, x in kinds.items()}
    return SimpleNamespace(**kinds, mask=mask, groups=np.arange(len(LENGTHS)) // 4)


@pytest.fixture(scope="session")
def batch_of():
    """Returns a function that makes a batch of numbers; token ids are their indices."""

    def make(numbers):
        B, T = numbers.mask.shape
        mask_BT = jnp.asarray(numbers.mask)
        trajectories = Trajectories(
            tokens_BT=jnp.arange(B * T, dtype=jnp.int32).reshape(B, T),
            response_mask_BT=mask_BT,
            positions_BT=jnp.zeros((B, T), jnp.int32),
            segment_ids_BT=jnp.ones((B, T), jnp.int32),
            behaviour_logprobs_BT=jnp.asarray(numbers.behaviour),
            policy_version_BT=jnp.where(mask_BT & ~np.isnan(numbers.behaviour), 0, -1),
            group_ids_B=jnp.asarray(numbers.groups, jnp.int32),
            finish_B=jnp.zeros(B, jnp.int8),
        )
        scores = {
            "proximal_logprobs": numbers.proximal,
            "reference_logprobs": numbers.reference,
            "entropy": numbers.entropy,
            "values": numbers.old_values,
            "returns": numbers.returns,
        }
        return TrainingBatch(
            trajectories=trajectories,
            advantages_BT=jnp.asarray(np.broadcast_to(numbers.advantages[:, None], (B, T))),
            loss_mask_BT=mask_BT,
            scores={name: jnp.asarray(x) for name, x in scores.items()},
        )

    return make


@pytest.fixture
def our_loss(monkeypatch, make_objective, batch_of):
    """Returns a function that computes the gradient step's loss and slopes from given numbers.

    The numbers replace a model's forward. All later code is that of a run, in two microbatches. The
    other projects process all rows at once.
    """

    def scores(decoder, params, hidden, trajectories, sampling, temperature, teacher):
        assert temperature is teacher is None  # it does not change over the run
        ids_BT = trajectories.tokens_BT
        return TokenScores(
            logprobs_BT=params["logprobs"][ids_BT],
            entropy_BT=params["entropy"][ids_BT],
            collision_BT=jnp.zeros(ids_BT.shape),
        )

    def trunk(decoder, params, trajectories, before):
        assert before is None  # no prompts are shared here
        return params["values"][trajectories.tokens_BT]

    for name in ("logprobs", "entropy", "values"):  # they replace parameters
        monkeypatch.setitem(DECLARED, name, vector())
    monkeypatch.setattr("rl4p.learner.objective.trunk", trunk)
    monkeypatch.setattr("rl4p.learner.objective.token_scores", scores)
    monkeypatch.setattr("rl4p.learner.critic.values", lambda head, hidden: hidden)

    decoder = SimpleNamespace(
        dtype="float32", exact=False, config=SimpleNamespace(kinds=(), labels=0)
    )

    def evaluate(numbers, update, *, group_size=1, **phases):
        update = replace(update, tokens_per_microbatch=4 * numbers.mask.shape[1])
        objective = make_objective(update, group_size=group_size, decoder=decoder, **phases)
        coefficients = {
            name: getattr(objective, name).coefficient({}) for name in ("kl", "entropy")
        }
        names = ("logprobs", "entropy", "values")
        arrays = {name: jnp.asarray(getattr(numbers, name).ravel()) for name in names}
        params = {**arrays, "critic": {}}
        state = TrainState(
            step=jnp.int32(0), params=params, optimizer_state={}, key=jax.random.key(0), memory={}
        )

        with jax.disable_jit():  # each loss runs once, so compiling would take longer
            gradient, sums, _ = forward_backward(
                objective, {}, state, batch_of(numbers), coefficients
            )
        slopes = {name: np.asarray(gradient[name]).reshape(numbers.mask.shape) for name in names}
        return SimpleNamespace(loss=float(sums["loss"]), **slopes)

    return evaluate
