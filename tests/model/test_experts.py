"""Tests both dispatches against a loop, in a decoder, and on several devices."""

import dataclasses
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.model.decoder import Decoder
from rl4p.model.experts import XIELU, Experts, SharedExperts
from rl4p.model.products import Projection
from tests.golden import forward
from tests.golden.cases import decoder_config, make_tensors, sequences, to_params

CONFIG = decoder_config("qwen3_moe")  # 2 of 6 experts are chosen
DISPATCHES = ("dense", "grouped")


@pytest.fixture(scope="module")
def experts():
    """Returns the parameters of one layer, and 2 x 5 tokens."""
    layers = to_params(CONFIG, make_tensors(CONFIG))["layers"]["experts"]
    x_BTD = np.random.default_rng(0).normal(size=(2, 5, CONFIG.width)).astype(np.float32)
    return jax.tree.map(lambda x_L: x_L[0], layers), x_BTD


def test_xielu_is_the_formula():
    """Its two constants, which are tensors of the files, have no gradient."""
    x = np.float32([[-9.0, -0.3, -1e-3, 0.0, 1e-3, 2.0]])
    numbers = {"positive": 0.3, "negative": -0.4, "slope": 0.7, "edge": -0.01}
    params = {name: jnp.float32([number]) for name, number in numbers.items()}

    def run(params):
        return XIELU().apply({"params": params}, x)

    p, n = np.log1p(np.exp(0.3)), 0.7 + np.log1p(np.exp(-0.4))
    below = n * (np.expm1(np.minimum(np.float64(x), -0.01)) - x) + 0.7 * x
    np.testing.assert_allclose(run(params), np.where(x > 0, p * x**2 + 0.7 * x, below), rtol=1e-5)
    gradient = jax.grad(lambda params: jnp.sum(run(params)))(params)
    assert all(gradient[name] != 0 for name in ("positive", "negative"))
    assert all(gradient[name] == 0 for name in ("slope", "edge"))
    fresh = jax.jit(XIELU().init)(jax.random.key(0), x)["params"]
    np.testing.assert_allclose(jax.nn.softplus(fresh["positive"]), 0.8, rtol=1e-6)
    np.testing.assert_allclose(0.5 + jax.nn.softplus(fresh["negative"]), 0.8, rtol=1e-6)


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


@pytest.mark.parametrize("dispatch", DISPATCHES)
def test_weights_may_multiply_the_inputs_of_experts(experts, dispatch):
    config, (_, x_BTD) = decoder_config("llama4_untuned"), experts
    layers = to_params(config, make_tensors(config))["layers"]["experts"]
    params = jax.tree.map(lambda x_L: np.float64(x_L[1]), layers)
    expected, of_results = np.zeros(x_BTD.shape), np.zeros(x_BTD.shape)
    for place in np.ndindex(*x_BTD.shape[:2]):
        x = np.float64(x_BTD[place])
        p = 1 / (1 + np.exp(-x @ params["router"]))
        for e in np.argsort(-p)[:2]:

            def run(x, e=e):
                gate = x @ params["gate"][e]
                return gate / (1 + np.exp(-gate)) * (x @ params["up"][e]) @ params["down"][e]

            expected[place] += run(p[e] * x)
            of_results[place] += p[e] * run(x)
    assert np.abs(expected - of_results).max() > 0.1 * np.abs(expected).max()
    params = jax.tree.map(np.float32, params)
    ours = Experts(config, jnp.float32, dispatch).apply({"params": params}, x_BTD)
    np.testing.assert_allclose(ours, expected, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("case", ["qwen2_moe", "solar_open"])
def test_shared_experts_are_a_feed_forward_that_may_have_a_weight(experts, case):
    config, x_BTD = decoder_config(case), experts[1]
    shared = to_params(config, make_tensors(config))["layers"]["shared"]
    params = jax.tree.map(lambda x_L: np.float64(x_L[1]), shared)
    assert config.shared_width == {"qwen2_moe": 20, "solar_open": 48}[case]
    gate, up = (x_BTD @ params[name]["kernel"] for name in ("gate", "up"))
    expected = (gate / (1 + np.exp(-gate)) * up) @ params["down"]["kernel"]
    if case == "qwen2_moe":
        weight_BT1 = 1 / (1 + np.exp(-x_BTD @ params["weight"].T))
        assert weight_BT1.min() < 0.3 < 0.7 < weight_BT1.max()
        expected = weight_BT1 * expected
    module = SharedExperts(config, jnp.float32, partial(Projection, use_bias=False))
    ours = module.apply({"params": jax.tree.map(np.float32, params)}, x_BTD)
    np.testing.assert_allclose(ours, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["dots1", "ernie4_5_moe", "llama4"])
def test_layers_with_and_without_experts_have_one_gradient_by_both_dispatches(case):
    config = decoder_config(case)
    params, tokens = to_params(config, make_tensors(config)), np.int32(sequences()[-1])[None]
    dense, grouped = (
        forward.gradient(Decoder(config=config, experts=dispatch), params, tokens)
        for dispatch in DISPATCHES
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), dense, grouped)
    assert not np.any(grouped["layers"]["experts"].get("router_correction"))
    assert np.abs(grouped["layers"]["experts"]["router"]).max() > 1e-3
    assert np.abs(grouped["layers"]["shared"]["up"]["kernel"]).max() > 1e-3


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


def undefined(x, sizes):
    """Returns x with rows that are not numbers behind those of all experts."""
    return jnp.where(jnp.arange(len(x))[:, None] < jnp.sum(sizes), x, jnp.nan)


@jax.custom_vjp
def ragged_dot(x, kernels, sizes):
    """Returns `jax.lax.ragged_dot`, with nan in rows without an expert, also in their gradient."""
    return undefined(LAX(x, kernels, sizes), sizes)


def forward_pass(x, kernels, sizes):
    return ragged_dot(x, kernels, sizes), (x, kernels, sizes)


def backward_pass(saved, dy):
    x, kernels, sizes = saved
    dx, dkernels = jax.vjp(lambda *both: LAX(*both, sizes), x, kernels)[1](dy)
    return undefined(dx, sizes), dkernels, None


LAX = jax.lax.ragged_dot
ragged_dot.defvjp(forward_pass, backward_pass)


@pytest.mark.slow
def test_the_parts_of_all_devices_add_up(experts, monkeypatch):
    """Two devices have three experts each; rows of the other experts are nan on a device."""
    params, x_BTD = experts
    scores_BTE = x_BTD @ params["router"]
    kernels = [params[name] for name in ("gate", "up", "down")]

    def part(x_BTD, scores_BTE, kernels, first):
        module = Experts(CONFIG, jnp.dtype("float32"), "grouped")
        return module.grouped(x_BTD, scores_BTE, None, (None, None), kernels, [None] * 3, first)

    def gradient(*pieces):
        def loss(x_BTD, scores_BTE, kernels):
            y_BTD = sum(
                part(x_BTD, scores_BTE, [kernel[piece] for kernel in kernels], piece.start)
                for piece in pieces
            )
            return jnp.sum(jnp.sin(y_BTD)), y_BTD

        differentiate = jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)
        return differentiate(x_BTD, scores_BTE, kernels)

    whole = gradient(slice(0, 6))
    monkeypatch.setattr(jax.lax, "ragged_dot", ragged_dot)
    parts = gradient(slice(0, 3), slice(3, 6))
    assert np.abs(whole[1][0]).max() > 0.01
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), whole, parts)


# Each of several devices has some of the experts, and some of the rows.
DIVIDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from rl4p.distributed.collectives import ROWS, on_rows
from rl4p.distributed.mesh import Mesh
from rl4p.model.experts import Experts, SharedExperts
from rl4p.model.products import Projection
from tests.golden.cases import decoder_config, make_tensors, to_params

config = decoder_config("gpt_oss")  # with biases
E, D = config.experts, config.width
layers = to_params(config, make_tensors(config))["layers"]["experts"]
params = jax.tree.map(lambda x_L: x_L[1], layers)
x_BTD = np.random.default_rng(0).normal(size=(8, 5, D)).astype(np.float32)

def run(dispatch, params, x_BTD, mesh=None):
    return Experts(config, jnp.dtype("float32"), dispatch).apply({"params": params}, x_BTD, mesh)

def placed(params, mesh):
    whole = ("router", "router_bias")
    specs = {x: PartitionSpec() if x in whole else PartitionSpec(mesh.product_axes) for x in params}
    return jax.device_put(params, {x: NamedSharding(mesh.devices, specs[x]) for x in params})

def rows(mesh, x_BTD):
    axes = [axis for axis in ("dp", "fsdp") if axis not in mesh.product_axes]
    return jax.device_put(x_BTD, NamedSharding(mesh.devices, PartitionSpec(axes)))

def check(ours, expected, of):
    assert np.linalg.norm(ours - expected) <= 1e-6 * np.linalg.norm(expected), of

for dispatch in ("dense", "grouped"):
    expected = run(dispatch, params, x_BTD)
    for mesh in (
        Mesh(dp=4, tp=2), Mesh(dp=1, fsdp=8), Mesh(dp=8, sampling_tp=2).sampling_mesh(24, 1),
    ):
        for count in (8, 1):
            arrays = placed(params, mesh), rows(mesh, x_BTD) if count == 8 else x_BTD[:1]
            program = jax.jit(lambda params, x: run(dispatch, params, x, mesh)).lower(*arrays)
            program = program.compile()
            check(program(*arrays), expected[:count], (dispatch, mesh))
            text, each = program.as_text(), mesh.size // mesh.devices_per_row
            if count == 8:  # a device runs the tokens of its rows
                assert "all-gather" not in text and "all-to-all" not in text, (dispatch, mesh)
            if dispatch == "grouped" and count == 8:  # and sorts their pairs
                assert f"s32[{2 * 5 * 8 // each}]" in text and f"s32[{2 * 5 * 8}]" not in text, mesh

    # An update: the devices along fsdp have their own rows, and those along tp their own experts.
    def loss(params, x_BTD):
        return jnp.sum(x_BTD * run(dispatch, params, x_BTD))

    expected = jax.grad(loss)(params, x_BTD)
    assert max(np.abs(x).max() for x in jax.tree.leaves(expected)) > 0.1
    for mesh in (Mesh(dp=4, tp=2), Mesh(dp=1, fsdp=1, tp=2)):
        def gradient(shared, x_BTD):
            return jax.tree.map(lambda x: x[None], jax.grad(loss)(shared["experts"], x_BTD))

        @jax.jit
        def total(params, x_BTD):
            several = on_rows(mesh, gradient, {"experts": params}, x_BTD, results=ROWS)
            return jax.tree.map(lambda x: jnp.sum(x, axis=0), several)

        ours = total(placed(params, mesh), rows(mesh, x_BTD))
        for name, x in expected.items():
            check(ours[name], x, (dispatch, mesh, name))
"""


@pytest.mark.slow
def test_devices_with_their_own_experts_compute_the_same(on_devices):
    command = [sys.executable, "-c", DIVIDED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=on_devices(8))
    assert done.returncode == 0, done.stderr[-3000:]


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


@pytest.mark.slow
def test_the_gradient_of_a_decoder_is_the_same_with_recomputed_layers(decoders):
    dense, grouped, params = decoders
    tokens = np.int32(sequences()[-1])[None]
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5),
        forward.gradient(dataclasses.replace(grouped, remat="layer"), params, tokens),
        forward.gradient(dense, params, tokens),
    )


@pytest.mark.slow
def test_greedy_tokens_from_a_cache_are_the_same(decoders):
    dense, grouped, params = decoders
    prompt = np.int32(sequences()[1])
    expected = forward.greedy(dense, params, prompt, 16)
    assert len(set(expected)) > 3
    assert forward.greedy(grouped, params, prompt, 16) == expected


@pytest.mark.slow
def test_a_model_without_experts_passes_over_the_choice(policy, params):
    row = forward.rows([np.arange(5)], 16)
    grouped = dataclasses.replace(policy.decoder, experts="grouped")
    np.testing.assert_array_equal(
        forward.logits(grouped, params, *row), forward.logits(policy.decoder, params, *row)
    )
