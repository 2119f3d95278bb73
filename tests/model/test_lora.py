"""Tests adapters: the initial base is unchanged, only adapters train, and they can be merged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.base.types import Microbatching, Sampling, TrainingBatch
from rl4p.distributed.mesh import Mesh
from rl4p.learner.gradient_step import gradient_step
from rl4p.learner.logprobs import ScoreOptions, score_tokens
from rl4p.learner.optimizer import AdamW
from rl4p.model.decoder_config import LayerKind
from rl4p.model.huggingface import write_model, write_policy
from rl4p.model.lora import LoRA, merge_trees, merged_kernel
from rl4p.model.pretrained import Pretrained
from rl4p.update.reinforce import Reinforce
from tests.golden.cases import decoder_config, param_shapes

RANK, ALPHA = 2, 6.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory, policy, params):
    folder = tmp_path_factory.mktemp("base")
    write_model(folder, policy.decoder, params, (256,))
    policy.tokenizer.save_pretrained(folder)
    return folder


def build(folder, **options):
    lora = LoRA(**{"rank": RANK, "alpha": ALPHA} | options)
    return Pretrained(path=str(folder), lora=lora).build(Mesh(dp=1), jax.random.key(0))


@pytest.fixture(scope="module")
def adapted(folder):
    return build(folder)


@pytest.fixture(scope="module")
def trained(adapted):
    """Returns adapters that differ from their initial values."""
    key = jax.random.key(1)
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(key, x.shape), adapted[1])


def logprobs(policy, params, trajectories):
    options = ScoreOptions(
        decoder=policy.decoder, sampling=Sampling(), microbatching=Microbatching(tokens=128)
    )
    return score_tokens(options, params, trajectories)["logprobs"]


def test_shapes_and_first_values(adapted, params):
    policy, adapters = adapted
    assert set(adapters["layers"]) == {"query", "key", "value", "output", "gate", "up", "down"}
    down = adapters["layers"]["down"]
    assert down["lora_a"].shape == (2, 48, RANK)
    assert down["lora_b"].shape == (2, RANK, 32)
    assert float(jnp.abs(down["lora_b"]).max()) == 0
    largest = float(jnp.abs(down["lora_a"]).max())
    assert 0.8 * 48**-0.5 < largest <= 48**-0.5
    assert not np.array_equal(
        adapters["layers"]["gate"]["lora_a"], adapters["layers"]["up"]["lora_a"]
    )
    jax.tree.map(np.testing.assert_array_equal, policy.frozen, params)


@pytest.mark.slow
def test_it_begins_as_its_base(adapted, policy, params, make_trajectories):
    trajectories = make_trajectories()
    np.testing.assert_array_equal(
        logprobs(adapted[0], adapted[0].merged(adapted[1]), trajectories),
        logprobs(policy, params, trajectories),
    )


def test_a_projection_by_hand(adapted, trained):
    """The gate of layer 1 computes y = x W + b + (6 / 2) (x A) B."""
    from rl4p.model.products import Projection

    gate = jax.tree.map(lambda x: x[1], adapted[0].merged(trained)["layers"]["gate"])
    x = np.random.default_rng(0).normal(size=(3, 32)).astype(np.float32)
    y = Projection(48, use_bias=False, dtype=jnp.float32, adapter_scale=3.0, parent=None).apply(
        {"params": gate}, x
    )
    kernel, a, b = (np.asarray(gate[name], np.float64) for name in ("kernel", "lora_a", "lora_b"))
    np.testing.assert_allclose(y, x @ kernel + 3 * (x @ a) @ b, rtol=1e-4, atol=1e-5)


def test_the_scale_is_alpha_over_the_rank(adapted, trained, policy, make_trajectories):
    """With alpha 6 and rank 2 the kernel of the merged parameters grows by 3 A B."""
    assert LoRA(rank=2, alpha=6.0).scale == 3.0
    assert adapted[0].decoder.layer(LayerKind(False, False)).adapter_scale == 3.0
    whole = jax.tree.map(np.asarray, adapted[0].merged(trained))
    layers = {}
    for name, layer in whole["layers"].items():
        layers[name] = {key: x for key, x in layer.items() if not key.startswith("lora")}
        if "lora_a" in layer:
            layers[name]["kernel"] = layer["kernel"] + 3 * layer["lora_a"] @ layer["lora_b"]
    merged = whole | {"layers": layers}
    trajectories = make_trajectories()
    np.testing.assert_allclose(
        logprobs(adapted[0], adapted[0].merged(trained), trajectories),
        logprobs(policy, merged, trajectories),
        atol=1e-4,
    )


def test_merging_by_hand():
    a, b = np.float32([[1], [2]]), np.float32([[10, 20]])
    merged = merged_kernel(jnp.ones((2, 2), jnp.bfloat16), a, b, 0.5)
    np.testing.assert_array_equal(merged, [[6, 11], [11, 21]])
    assert merged.dtype == jnp.float32


def test_adapters_are_float32_whatever_their_base_is(folder):
    policy, adapters = Pretrained(
        path=str(folder), param_dtype="bfloat16", lora=LoRA(rank=1)
    ).build(Mesh(dp=1), jax.random.key(0))
    assert {x.dtype.name for x in jax.tree.leaves(adapters)} == {"float32"}
    assert {x.dtype.name for x in jax.tree.leaves(policy.frozen)} == {"bfloat16"}


def test_the_key_is_that_of_fresh_adapters(adapted, folder, params):
    lora = LoRA(rank=RANK, alpha=ALPHA)
    jax.tree.map(
        np.testing.assert_array_equal, adapted[1], jax.jit(lora.init)(jax.random.key(0), params)
    )
    first, second = (lora.init(jax.random.key(i), params)["layers"] for i in range(2))
    assert not np.array_equal(first["up"]["lora_a"], second["up"]["lora_a"])


@pytest.mark.slow
def test_the_targets_are_a_pattern(folder):
    for targets in ("query|value", ("query", "value"), ("q_proj", "v_proj"), "(q|v)_proj|value"):
        names = {"query", "value"} if targets != "(q|v)_proj|value" else {"value"}
        assert set(build(folder, targets=targets)[1]["layers"]) == names
    fused = build(folder, targets=("qkv_proj", "down_proj"))[1]["layers"]
    assert set(fused) == {"query", "key", "value", "down"}
    assert len(build(folder, targets="all-linear")[1]["layers"]) == 7
    with pytest.raises(InputError, match="no projection of this model, which has query, key, val"):
        build(folder, targets="quer")
    with pytest.raises(ValueError, match="is not a valid regex"):
        LoRA(rank=1, targets="(")


@pytest.mark.parametrize(
    ("case", "targets", "expected"),
    [
        ("lfm2", "in_proj", {("convolution", x) for x in ("input_gate", "output_gate", "value")}),
        ("lfm2", "out_proj", {("convolution", "output")}),
        (
            "nemotron_h",
            "in_proj",
            {("mamba", x) for x in ("query", "key", "value", "gate", "step")},
        ),
        ("qwen3_5_moe", "q_proj", {("query",), ("attention_gate",)}),
        ("qwen3_5_moe", "query", {("query",), ("delta", "query")}),
        ("qwen3_5_moe", "delta.query", {("delta", "query")}),
        (
            "qwen3_5_moe",
            ("in_proj_qkv", "out_proj"),
            {("delta", x) for x in ("query", "key", "value", "output")},
        ),
        (
            "qwen3_5_moe",
            ("in_proj_z", "in_proj_b", "in_proj_a"),
            {("delta", x) for x in ("gate", "strength", "step")},
        ),
        ("qwen3_5_moe", "gate_proj", {("shared", "gate")}),
        ("gemma4", "q_proj", {("query",), ("full", "query")}),
    ],
)
def test_modules_of_other_mixers_have_their_own_names(case, targets, expected):
    shapes = param_shapes(decoder_config(case))
    layers = jax.eval_shape(LoRA(rank=2, targets=targets).init, jax.random.key(0), shapes)["layers"]
    paths = {tuple(key.key for key in path[:-1]) for path, _ in jax.tree.leaves_with_path(layers)}
    assert paths == expected


@pytest.mark.slow
@pytest.mark.mixed_dtypes
def test_adapters_are_trained_and_their_base_is_not(
    adapted, make_trajectories, make_state, make_objective
):
    """The first step, from B = 0, changes B only, since the gradient of A is a multiple of B."""
    policy, adapters = adapted
    trajectories = make_trajectories()
    mask = trajectories.response_mask_BT
    batch = TrainingBatch(
        trajectories=trajectories,
        advantages_BT=jnp.where(mask, 1.0, 0.0),
        loss_mask_BT=mask,
        scores={},
    )
    before = jax.device_get(policy.frozen)
    optimizer = AdamW(learning_rate=1e-2)
    state = make_state(adapters, optimizer)
    assert jax.tree.structure(state.optimizer_state[1][0].mu) == jax.tree.structure(adapters)
    state, metrics = gradient_step(
        make_objective(Reinforce(), decoder=policy.decoder),
        optimizer,
        policy.frozen,
        state,
        batch,
        {},
    )
    jax.tree.map(np.testing.assert_array_equal, policy.frozen, before)
    assert jax.tree.structure(state.params) == jax.tree.structure(adapters)
    for name, adapter in state.params["layers"].items():
        np.testing.assert_array_equal(adapter["lora_a"], adapters["layers"][name]["lora_a"])
        assert float(jnp.abs(adapter["lora_b"]).max()) > 1e-3
    assert float(metrics["update/grad_norm"]) > 0


def test_merged_they_are_the_same_policy(adapted, trained, make_trajectories, tmp_path):
    policy, _ = adapted
    write_policy(tmp_path / "out", policy, trained)
    merged, params = Pretrained(path=str(tmp_path / "out")).build(Mesh(dp=1), jax.random.key(0))
    trajectories = make_trajectories()
    mask = trajectories.response_mask_BT
    ours = np.where(mask, logprobs(policy, policy.merged(trained), trajectories), 0)
    np.testing.assert_allclose(
        np.where(mask, logprobs(merged, params, trajectories), 0), ours, atol=2e-5
    )
    base = np.where(mask, logprobs(policy, policy.merged(adapted[1]), trajectories), 0)
    assert np.abs(base - ours).max() > 0.01


def test_two_trees_are_merged():
    assert merge_trees({}, {"a": 1}) == {"a": 1}
    frozen = {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    joined = merge_trees(frozen, {"a": {"c": {"f": 4}}, "g": 5})
    assert joined == {"a": {"b": 1, "c": {"d": 2, "f": 4}}, "e": 3, "g": 5}
    assert frozen == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}


@pytest.mark.parametrize("options", [{"alpha": 8.0}, {"targets": "query"}])
def test_options_of_adapters_without_a_rank_are_refused(options):
    with pytest.raises(ValueError, match="rank=0, which adds no adapter: set rank"):
        LoRA(**options)
    LoRA(rank=1, **options)
