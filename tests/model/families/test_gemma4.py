"""Tests Gemma 4: heads of full layers, shared keys, and what is refused."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.model.decoder import Decoder
from rl4p.model.decoder_config import KeyHeads, SharedKeys
from rl4p.model.families import FAMILIES
from rl4p.model.rope import ProportionalScaling
from tests.golden.cases import decoder_config

TWO = {"head_dim": 16, "num_key_value_heads": 2}


def test_its_keys(read):
    config = read("gemma4")
    assert config.full == KeyHeads(head_width=16, num_kv_heads=2, keys_as_values=True)
    assert (config.head_width, config.num_kv_heads) == (8, 4)
    assert config.rope_scaling == ProportionalScaling(part=0.5)
    assert (config.rope_theta, config.local_rope_theta) == (500.0, 50.0)
    assert not config.centered_norm
    assert config.query_scalar == 1
    assert [kind.stack for kind in config.kinds] == ["", "full", "", "", "full"]


def test_the_last_layers_share_keys(read):
    config = read("gemma4_shared")
    assert config.sharing == SharedKeys(layers=2, feed_forward_width=96)
    assert [kind.stack for kind in config.kinds] == ["", "full", "", "shares", "full_shares"]
    single = read("gemma4_shared", {"use_double_wide_mlp": False})
    assert single.sharing == SharedKeys(layers=2, feed_forward_width=48)


@pytest.mark.parametrize(
    ("change", "heads"),
    [
        ({"attention_k_eq_v": False}, (16, 4, False)),
        ({"num_global_key_value_heads": None}, (16, 4, True)),
        ({"global_head_dim": None}, (512, 2, True)),
        ({"per_layer_config": {}}, (8, 4, True)),
        ({"per_layer_config": {"1": TWO, "4": TWO}, "global_head_dim": None}, (16, 2, True)),
        ({"per_layer_config": {key: {"head_dim": 24} for key in "14"}}, (24, 4, True)),
    ],
)
def test_heads_of_full_layers(read, written, change, heads):
    width, count, as_values = heads
    config = read("gemma4", change)
    expected = KeyHeads(head_width=width, num_kv_heads=count, keys_as_values=as_values)
    assert config.full == expected
    keys = written(config) | {"model_type": "gemma4_text"}
    assert (keys["global_head_dim"], keys["num_global_key_value_heads"]) == (width, count)


def test_experts_stand_beside_the_feed_forward(read):
    config = read("gemma4_moe")
    assert {kind.feed_forward for kind in config.kinds} == {"both"}
    assert (config.experts, config.chosen_experts, config.expert_width) == (8, 3, 24)
    assert config.router.scaled
    paths = {tensor.name: tensor.path for tensor in FAMILIES["gemma4_text"].names(config)}
    router = paths["model.layers.2.router.proj.weight"]
    assert router == ("layers", "full", "experts", "router")
    without = {"enable_moe_block": False, "num_experts": None}
    assert read("gemma4_moe", without).experts == 0


def test_the_files_may_have_keys_that_no_layer_reads(read):
    names = FAMILIES["gemma4_text"].unused_names(read("gemma4_shared"))
    unread = [f"model.layers.{i}.self_attn.k_proj.weight" for i in range(6)]
    assert [bool(re.fullmatch(names, name)) for name in unread] == [i in (3, 4) for i in range(6)]
    names = FAMILIES["gemma4_text"].unused_names(read("gemma4"))
    assert not any(re.fullmatch(names, name) for name in unread)


def test_the_last_layer_never_slides(read):
    assert read("gemma4", {"layer_types": None}).sliding == (True,) * 4 + (False,)
    assert read("gemma4", {"layer_types": ["sliding_attention"] * 5}).sliding[-1] is False
    none = read("gemma4", {"layer_types": ["full_attention"] * 5})
    assert (none.sliding, none.window) == ((), None)


def test_absent_rope_parameters(read):
    config = read("gemma4", {"rope_parameters": None})
    assert config.rope_scaling == ProportionalScaling(part=0.25)
    assert (config.rope_theta, config.local_rope_theta) == (1e6, 1e4)


def rope(full=(), **others):
    sections = {
        "full_attention": {"rope_type": "default", "rope_theta": 5.0} | dict(full),
        "sliding_attention": {"rope_theta": 5.0},
    }
    return {"rope_parameters": sections | others}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rope_theta": 5.0}, "requires rope_theta 5.0, which"),
        ({"hidden_activation": "silu"}, "requires activation 'silu'"),
        ({"use_bidirectional_attention": "all"}, "requires use_bidirectional_attention 'all'"),
        ({"hidden_size_per_layer_input": 4}, "vocab_size_per_layer_input 262144 beside"),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers 4 leaves no layer of each type"),
        ({"num_kv_shared_layers": 5}, "num_kv_shared_layers 5 leaves no layer of each type"),
        ({"num_global_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of the 3"),
        ({"per_layer_config": {"1": {"head_dim": 4}}}, "a per_layer_config that is not the same"),
        ({"per_layer_config": {key: {"rms_norm_eps": 1.0} for key in "14"}}, "not the same"),
        ({"enable_moe_block": True}, "has no 'num_experts'"),
        (
            {"enable_moe_block": True, "num_experts": 2, "top_k_experts": 3},
            "top_k_experts 3 is more than num_experts 2",
        ),
        (rope(other={}), "rope_parameters with 'other'"),
        (rope(sliding_attention={"rope_type": "linear", "rope_theta": 5.0, "factor": 2.0}), "scal"),
        (rope({"rope_type": "linear", "factor": 2.0}), "factor 2.0 with rope type 'linear'"),
        (rope({"rope_type": "linear"}), "rope type 'linear'"),
        (rope({"partial_rotary_factor": 0.5}), "partial_rotary_factor 0.5 with rope type 'def"),
        (rope({"rope_type": "proportional", "partial_rotary_factor": 2}), "_rotary_factor 2.0"),
    ],
)
def test_what_is_refused(read, change, words):
    with pytest.raises(InputError, match=re.escape(words)):
        read("gemma4", change)


def test_keys_of_full_layers_without_values_are_those_of_others(read):
    change = {"attention_k_eq_v": False, "per_layer_config": dict.fromkeys("14", TWO)}
    with pytest.raises(InputError, match="other key and value heads in full layers"):
        read("gemma4", change)


@pytest.mark.slow
def test_a_loop_keeps_the_last_shared_keys_and_not_those_of_all_layers():
    config = replace(decoder_config("gemma4_shared"), layers=8, sliding=(True, False) * 4)
    decoder = Decoder(config=config, remat="layer")
    params = jax.eval_shape(decoder.init, jax.random.key(0))
    row = [jax.ShapeDtypeStruct((5, 11), np.int32)] * 3

    def loss(params, *row):
        return jnp.sum(jnp.square(decoder.hidden(params, *row)))

    of_all_layers = "f32[3,5,2,8,11]"
    assert "f32[5,2,8,11]" in (program := str(jax.make_jaxpr(jax.grad(loss))(params, *row)))
    assert of_all_layers not in program
    assert of_all_layers in str(jax.make_jaxpr(decoder.caches)(params, *row))
