"""Tests norms and products by hand, and expert dispatches against a loop and in a decoder."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.decoder import Decoder
from rl4p.model.layer import Experts, Projection, RMSNorm, product
from tests.equations import equations
from tests.golden import forward
from tests.golden.cases import decoder_config, make_tensors, sequences, to_params

CONFIG = decoder_config("qwen3_moe")  # 2 of 6 experts are chosen
DISPATCHES = ("dense", "grouped")


def test_a_norm_divides_by_the_root_of_the_mean_square():
    """For 3, 4 and epsilon 12.5 the root is 5; a centered norm adds 1 to its scale."""
    x, scale = np.float32([[3, 4]]), np.float32([2, -1])
    for centered, expected in ((False, [6 / 5, -4 / 5]), (True, [9 / 5, 0])):
        norm = RMSNorm(12.5, centered)
        normed = norm.apply({"params": {"scale": scale}}, x)
        np.testing.assert_allclose(normed[0], expected, rtol=1e-6)
        fresh = norm.init(jax.random.key(0), x)["params"]["scale"]
        np.testing.assert_array_equal(fresh, [1 - centered] * 2)


def test_a_norm_of_half_precision_is_rounded_once():
    random = np.random.default_rng(0)
    x = jnp.asarray(random.normal(size=(4, 32)), jnp.bfloat16)
    params = {"params": {"scale": jnp.asarray(random.normal(size=32), jnp.float32)}}
    exact = RMSNorm(1e-6).apply(params, x.astype(jnp.float32))
    rough = RMSNorm(1e-6).apply(params, x)
    assert rough.dtype == jnp.bfloat16
    np.testing.assert_array_equal(rough, exact.astype(jnp.bfloat16))


def test_a_product_and_its_own_derivative_are_those_of_jax():
    random = np.random.default_rng(0)
    x_BTD, kernel_DF, weights_BTF = (
        jnp.asarray(random.normal(size=shape), jnp.float32)
        for shape in ((2, 5, 3), (3, 4), (2, 5, 4))
    )

    def of(multiply):
        def loss(x_BTD, kernel_DF):
            return jnp.sum(weights_BTF * jnp.sin(multiply(x_BTD, kernel_DF)))

        return jax.value_and_grad(loss, argnums=(0, 1))(x_BTD, kernel_DF)

    ours, expected = of(product), of(lambda x, kernel: jnp.einsum("BTD,DF->BTF", x, kernel))
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, expected
    )


@pytest.mark.parametrize("sums", ["float32", None])
def test_a_product_of_bfloat16_and_its_derivative_are_rounded_once(sums):
    random = np.random.default_rng(0)
    x_BTD, kernel_DF, dy_BTF = (
        jnp.asarray(random.normal(size=shape), jnp.bfloat16)
        for shape in ((2, 50, 300), (300, 40), (2, 50, 40))
    )

    def run(x_BTD, kernel_DF, dy_BTF):
        y_BTF, back = jax.vjp(lambda x, kernel: product(x, kernel, sums), x_BTD, kernel_DF)
        return y_BTF, *back(dy_BTF)

    program = jax.make_jaxpr(run)(x_BTD, kernel_DF, dy_BTF)
    products = [x for _, x in equations(program.jaxpr) if x.primitive.name == "dot_general"]
    kinds = {x.outvars[0].aval.dtype.name for x in products}
    assert (len(products), kinds) == (3, {sums or "bfloat16"})
    wide = [np.asarray(x, np.float64) for x in (x_BTD, kernel_DF, dy_BTF)]
    exact = (
        wide[0] @ wide[1],
        wide[2] @ wide[1].T,
        np.einsum("BTD,BTF->DF", wide[0], wide[2]),
    )
    for ours, expected in zip(run(x_BTD, kernel_DF, dy_BTF), exact, strict=True):
        assert ours.dtype == jnp.bfloat16
        if sums is not None:  # half a unit in the last of 8 bits, and the error of the sum
            error = np.abs(np.asarray(ours, np.float64) - expected)
            assert (error <= 2.0**-8 * np.abs(expected) + 1e-4).all()


def test_a_projection_multiplies_and_adds_its_bias():
    x = np.float32([[1, 2]])
    params = {"kernel": np.float32([[1, 0, 3], [0, 1, -1]]), "bias": np.float32([10, 20, 30])}
    for bias, expected in ((True, [11, 22, 31]), (False, [1, 2, 1])):
        projection = Projection(3, use_bias=bias, dtype=jnp.float32, parent=None)
        np.testing.assert_array_equal(projection.apply({"params": params}, x)[0], expected)


@pytest.fixture(scope="module")
def experts():
    """Returns the parameters of one layer, and 2 x 5 tokens."""
    layers = to_params(CONFIG, make_tensors(CONFIG))["layers"]["experts"]
    x_BTD = np.random.default_rng(0).normal(size=(2, 5, CONFIG.width)).astype(np.float32)
    return jax.tree.map(lambda x_L: x_L[0], layers), x_BTD


def run(dispatch, params, x_BTD, dtype="float32"):
    module = Experts(CONFIG, jnp.dtype(dtype), dispatch)
    return module.apply({"params": params}, jnp.asarray(x_BTD, dtype))


def by_a_loop(params, x_BTD):
    """Computes token by token in float64; returns also the set of chosen experts."""
    params = jax.tree.map(np.float64, params)
    rows, used = [], set()
    for x in np.float64(x_BTD).reshape(-1, CONFIG.width):
        p = np.exp(x @ params["router"])
        chosen = np.argsort(-p)[: CONFIG.chosen_experts]
        used |= set(chosen.tolist())
        y = np.zeros(CONFIG.width)
        for e in chosen:
            gate = x @ params["gate"][e]
            hidden = gate / (1 + np.exp(-gate)) * (x @ params["up"][e])
            y += p[e] / p[chosen].sum() * hidden @ params["down"][e]
        rows.append(y)
    return np.reshape(rows, x_BTD.shape), used


def crowded(params, x_BTD):
    """Returns a router that sends all tokens to experts 4 and 1."""
    x_BTD = np.array(x_BTD)
    x_BTD[..., 0] = 3.0
    router = 0.01 * params["router"]
    router[0] = [0, 2, 0, 0, 2.1, 0]
    return params | {"router": router}, x_BTD


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_both_dispatches_are_the_formula(experts, dispatch):
    expected, used = by_a_loop(*experts)
    assert len(used) > 3
    np.testing.assert_allclose(run(dispatch, *experts), expected, atol=1e-5)
    expected, used = by_a_loop(*crowded(*experts))
    assert used == {1, 4}
    np.testing.assert_allclose(run(dispatch, *crowded(*experts)), expected, atol=1e-5)


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_experts_with_biases_are_the_formula(experts, dispatch):
    """Gates above 7 and ups beyond -7 and 7 are cut."""
    config, (_, x_BTD) = decoder_config("gpt_oss"), experts
    layers = to_params(config, make_tensors(config))["layers"]["experts"]
    params = jax.tree.map(lambda x_L: np.float64(x_L[1]), layers)
    expected, largest = np.zeros(x_BTD.shape), 0.0
    for place in np.ndindex(*x_BTD.shape[:2]):
        x = np.float64(x_BTD[place])
        p = np.exp(x @ params["router"] + params["router_bias"])
        chosen = np.argsort(-p)[:2]
        for e in chosen:
            gate = x @ params["gate"][e] + params["gate_bias"][e]
            up = x @ params["up"][e] + params["up_bias"][e]
            largest = max(largest, gate.max(), np.abs(up).max())
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            hidden = gate / (1 + np.exp(-1.702 * gate)) * (up + 1)
            y = hidden @ params["down"][e] + params["down_bias"][e]
            expected[place] += p[e] / p[chosen].sum() * y
    assert largest > 7
    params = jax.tree.map(np.float32, params)
    ours = Experts(config, jnp.float32, dispatch).apply({"params": params}, x_BTD)
    np.testing.assert_allclose(ours, expected, atol=1e-4)


@pytest.mark.parametrize("case", ["spread", "crowded"])
def test_their_gradients_are_the_same(experts, case):
    params, x_BTD = crowded(*experts) if case == "crowded" else experts
    weights_BTD = np.random.default_rng(1).normal(size=x_BTD.shape).astype(np.float32)

    def gradient(dispatch):
        def loss(params, x_BTD):
            return jnp.sum(weights_BTD * run(dispatch, params, x_BTD))

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(params, x_BTD)

    (dense, dense_x), (grouped, grouped_x) = map(gradient, DISPATCHES)
    assert np.abs(dense_x).max() > 0.1
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        (dense, dense_x),
        (grouped, grouped_x),
    )
    if case == "crowded":
        assert [e for e in range(6) if np.any(grouped["down"][e])] == [1, 4]
        assert np.isfinite(grouped["router"]).all()


def test_grouped_experts_run_in_bfloat16(experts):
    rough = run("grouped", *experts, dtype="bfloat16")
    assert rough.dtype == jnp.bfloat16
    exact = run("dense", *experts)
    assert 0 < np.std(np.float32(rough) - exact) < 0.05 * np.std(exact)


@pytest.fixture(scope="module")
def decoders():
    dense, grouped = (Decoder(config=CONFIG, experts=dispatch) for dispatch in DISPATCHES)
    return dense, grouped, to_params(CONFIG, make_tensors(CONFIG))


def test_the_logits_of_a_decoder_are_the_same(decoders):
    """Runs a scan over layers under jit; padding is routed to experts too."""
    dense, grouped, params = decoders
    rows = forward.rows(sequences(), 48)
    expected = np.asarray(forward.logits(dense, params, *rows))
    np.testing.assert_allclose(forward.logits(grouped, params, *rows), expected, atol=1e-5)


def test_the_gradient_of_a_decoder_is_the_same_with_recomputed_layers(decoders):
    dense, grouped, params = decoders
    tokens = np.int32(sequences()[-1])[None]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        forward.gradient(dataclasses.replace(grouped, remat="layer"), params, tokens),
        forward.gradient(dense, params, tokens),
    )


def test_greedy_tokens_from_a_cache_are_the_same(decoders):
    dense, grouped, params = decoders
    prompt = np.int32(sequences()[1])
    expected = forward.greedy(dense, params, prompt, 16)
    assert len(set(expected)) > 3
    assert forward.greedy(grouped, params, prompt, 16) == expected


def test_a_model_without_experts_passes_over_the_choice(policy, params):
    row = forward.rows([np.arange(5)], 16)
    grouped = dataclasses.replace(policy.decoder, experts="grouped")
    np.testing.assert_array_equal(
        forward.logits(grouped, params, *row), forward.logits(policy.decoder, params, *row)
    )
