import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model import logprobs
from rl4p.model.logprobs import score_tokens, token_scores, trunk
from rl4p.types import Sampling


@pytest.fixture(scope="module")
def trajectories(make_trajectories):
    return make_trajectories()


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_scores_are_aligned_with_their_tokens(
    policy, params, trajectories, numpy_logits, score_all, temperature
):
    """Log p of token t stands at t, and was made from the tokens before it."""
    sampling = Sampling(temperature=temperature)
    for x in score_all(policy.decoder, params, trajectories, sampling):
        assert not np.where(trajectories.response_mask_BT, 0, x).any()
    trajectories = dataclasses.replace(
        trajectories, response_mask_BT=trajectories.segment_ids_BT > 0
    )
    ours, entropy, collision = score_all(policy.decoder, params, trajectories, sampling)
    assert not ours[:, 0].any()
    for row in (0, 1, 3):
        real = np.flatnonzero(trajectories.segment_ids_BT[row])
        tokens = np.asarray(trajectories.tokens_BT[row, real])
        scores = numpy_logits(policy.decoder.config, params, tokens)[:-1] / temperature
        scores -= np.log(np.sum(np.exp(scores), axis=1, keepdims=True))
        expected = scores[np.arange(len(tokens) - 1), tokens[1:]]
        np.testing.assert_allclose(ours[row, real[1:]], expected, atol=1e-5)
        np.testing.assert_allclose(
            entropy[row, real[1:]], -np.sum(np.exp(scores) * scores, axis=1), atol=1e-5
        )
        squares = np.sum(np.exp(2 * scores), axis=1)
        np.testing.assert_allclose(collision[row, real[1:]], squares, rtol=1e-4)


def test_logits_a_few_tokens_at_a_time_change_nothing(policy, params, trajectories, monkeypatch):
    """120 scored tokens, seven at a time."""

    def loss(params, per_chunk):
        monkeypatch.setattr(logprobs, "LOGITS_PER_CHUNK", per_chunk)
        hidden_BTD = trunk(policy.decoder, params, trajectories)
        scores, entropy, _ = token_scores(
            policy.decoder, params, hidden_BTD, trajectories, Sampling()
        )
        kept = trajectories.response_mask_BT
        return jnp.sum(jnp.where(kept, scores + 0.1 * entropy, 0)), (scores, entropy)

    chunked, whole = (
        jax.jit(jax.value_and_grad(lambda p, n=n: loss(p, n), has_aux=True))(params)
        for n in (7 * policy.decoder.config.vocabulary, 2**24)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), chunked, whole
    )


def test_scoring_in_microbatches_is_scoring_at_once(policy, params, trajectories, score_all):
    sampling = Sampling(temperature=1.5, top_k=40, top_p=0.9)
    whole = score_all(policy.decoder, params, trajectories, sampling)
    names = ("logprobs", "entropy", "collision")
    parts = score_tokens(
        policy.decoder, params, trajectories, sampling, names=names, tokens_per_microbatch=3 * 16
    )
    assert set(parts) == set(names)
    for ours, expected in zip(map(parts.get, names), whole, strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-5)


def test_a_token_outside_the_support_has_a_finite_score_and_gradient(policy, params, trajectories):
    """Random tokens are hardly ever among the two most probable."""

    def loss(params):
        hidden_BTD = trunk(policy.decoder, params, trajectories)
        sampling = Sampling(top_k=2, top_p=0.5)
        found = token_scores(policy.decoder, params, hidden_BTD, trajectories, sampling)
        return sum(map(jnp.sum, found)), found.logprobs_BT

    (_, scores), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert all(jnp.isfinite(x).all() for x in (scores, *jax.tree.leaves(gradient)))
    assert scores.min() < -1
