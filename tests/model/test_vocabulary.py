"""The gradients of the matrices from and to the vocabulary."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.vocabulary import Head, head_product, rows_of_table

V, D, TOKENS = 300, 64, 4100
ONE_ROUNDING = 0.0017  # the relative error of an array that is rounded to bfloat16 once


def relative_error(ours, exact):
    ours, exact = np.float64(ours), np.float64(exact)
    return np.linalg.norm(ours - exact) / np.linalg.norm(exact)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-6), ("bfloat16", 1.1 * ONE_ROUNDING)])
def test_the_gradient_of_the_embedding_is_rounded_once(dtype, most):
    """A few tokens are most of the text, as in any language."""
    random = np.random.default_rng(0)
    shares = 1 / np.arange(1, V + 1)
    tokens = random.choice(V, size=(41, 100), p=shares / shares.sum())
    weights = np.float32(random.normal(2e-4, 1e-3, (41, 100, D)))
    table_VD = jnp.asarray(random.normal(0, 0.02, (V, D)), dtype)

    def loss(table_VD):
        x = rows_of_table(table_VD, tokens).astype("bfloat16").astype("float32")
        return jnp.sum(weights * x)

    gradient = jax.jit(jax.grad(loss))(table_VD)
    exact = np.zeros((V, D))
    rounded = np.asarray(weights.astype(jnp.bfloat16), np.float64)  # the activations are bfloat16
    np.add.at(exact, tokens.ravel(), rounded.reshape(-1, D))
    assert gradient.dtype == dtype
    assert relative_error(gradient, exact) < most
    assert relative_error(gradient[:5], exact[:5]) < most  # of the most frequent tokens


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_logits_are_a_product_and_so_are_their_gradients(dtype):
    random = np.random.default_rng(0)
    hidden, head_VD = (jnp.asarray(random.normal(size=x), dtype) for x in ((2, 3, D), (V, D)))
    weights = np.float32(random.normal(size=(2, 3, V)))

    def loss(hidden, head_VD):
        head = Head(jax.lax.stop_gradient(head_VD), head_VD.astype("float32"))
        logits = head_product(hidden, *head)
        return jnp.sum(weights * logits), logits

    gradients, logits = jax.grad(loss, argnums=(0, 1), has_aux=True)(hidden, head_VD)
    x, w = np.float64(hidden), np.float64(head_VD)
    np.testing.assert_allclose(logits, x @ w.T, atol=1e-4)
    exact = weights @ w, np.einsum("abV,abD->VD", weights, x)
    for ours, expected in zip(gradients, exact, strict=True):
        assert ours.dtype == dtype
        assert relative_error(ours, expected) < (1e-6 if dtype == "float32" else 1.1 * ONE_ROUNDING)


def test_a_sum_over_parts_is_rounded_once():
    """The gradient of the head over 38 chunks, of a head that is held in bfloat16."""
    random = np.random.default_rng(0)
    hidden, head_VD = (
        jnp.asarray(random.normal(size=x), "bfloat16") for x in ((38, 108, D), (V, D))
    )
    dy = random.normal(0, 1e-3, (38, 108, V)) + 1e-3 * (random.random(V) < 0.1)
    dy = np.asarray(jnp.asarray(dy, jnp.bfloat16), np.float32)

    def loss(head_VD):
        head = Head(jax.lax.stop_gradient(head_VD), head_VD.astype("float32"))
        return jnp.sum(
            jax.lax.map(lambda x: jnp.sum(x[1] * head_product(x[0], *head)), (hidden, dy))
        )

    gradient = jax.jit(jax.grad(loss))(head_VD)
    exact = np.einsum("abV,abD->VD", np.float64(dy), np.float64(hidden))
    assert relative_error(gradient, exact) < 1.1 * ONE_ROUNDING
