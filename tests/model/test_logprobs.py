import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model import logprobs
from rl4p.model.logprobs import microbatch_count, score_logprobs, split_rows, token_logprobs
from rl4p.types import Sampling

score_all = jax.jit(token_logprobs, static_argnums=(0, 3))


@pytest.fixture(scope="module")
def trajectories(make_trajectories):
    return make_trajectories()


@pytest.mark.parametrize("temperature", [0.5, 1.5])
def test_scores_are_aligned_with_their_tokens(
    policy, params, trajectories, numpy_logits, temperature
):
    """Log p of token t stands at t, and was made from the tokens before it."""
    ours, entropy = score_all(
        policy.decoder, params, trajectories, Sampling(temperature=temperature)
    )
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


def test_logits_a_few_tokens_at_a_time_change_nothing(policy, params, trajectories, monkeypatch):
    """120 scored tokens, seven at a time."""

    def loss(params, per_chunk):
        monkeypatch.setattr(logprobs, "LOGITS_PER_CHUNK", per_chunk)
        scores, entropy = token_logprobs(policy.decoder, params, trajectories, Sampling())
        kept = trajectories.response_mask_BT
        return jnp.sum(jnp.where(kept, scores + 0.1 * entropy, 0)), (scores, entropy)

    chunked, whole = (
        jax.jit(jax.value_and_grad(lambda p, n=n: loss(p, n), has_aux=True))(params)
        for n in (7 * policy.decoder.config.vocabulary, 2**24)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), chunked, whole
    )


def test_scoring_in_microbatches_is_scoring_at_once(policy, params, trajectories):
    sampling = Sampling(temperature=1.5, top_k=40, top_p=0.9)
    whole, _ = score_all(policy.decoder, params, trajectories, sampling)
    parts = score_logprobs(
        policy.decoder, params, trajectories, sampling, tokens_per_microbatch=3 * 16
    )
    np.testing.assert_allclose(parts, whole, atol=1e-5)


@pytest.mark.parametrize(
    ("limit", "count"), [(1, 8), (16, 8), (31, 8), (32, 4), (48, 3), (127, 2), (128, 1), (999, 1)]
)
def test_microbatches_hold_as_many_rows_as_fit_and_one_at_least(limit, count):
    assert microbatch_count(8, 16, limit) == count
    rows = np.arange(1, 9)
    split = split_rows({"a": rows, "b": jnp.ones((8, 3))}, count)
    each = -(-8 // count)
    assert (split["a"].shape, split["b"].shape) == ((count, each), (count, each, 3))
    np.testing.assert_array_equal(split["a"].ravel(), np.pad(rows, (0, count * each - 8)))


def test_a_token_outside_the_support_has_a_finite_score_and_gradient(policy, params, trajectories):
    """Random tokens are hardly ever among the two most probable."""

    def loss(params):
        scores, entropy = token_logprobs(
            policy.decoder, params, trajectories, Sampling(top_k=2, top_p=0.5)
        )
        return jnp.sum(scores) + jnp.sum(entropy), scores

    (_, scores), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    assert all(jnp.isfinite(x).all() for x in (scores, *jax.tree.leaves(gradient)))
    assert scores.min() < -1
