"""Tests Nemotron-H, Granite 4 and Bamba; test_family.py has their defaults."""

import math

import pytest

from rl4p.base.errors import InputError
from rl4p.model.families import FAMILIES


def names_of(config):
    return {tensor.name for tensor in FAMILIES[config.family].names(config)}


def test_a_layer_of_nemotron_is_one_block(read, written):
    config = read("nemotron_h")
    assert config.mixers == ("mamba", "none", "attention", "mamba", "none")
    assert config.feed_forwards == ("none", "gated", "none", "none", "gated")
    assert (config.activation, config.ungated) == ("relu2", True)
    assert all(config.unrotated)
    assert written(config)["layers_block_type"][:2] == ["linear_attention", "mlp"]


def test_the_older_pattern_of_letters(read, written):
    config = read("nemotron_h_biases")
    assert config.mixers == ("mamba", "attention", "none", "mamba")
    assert read("nemotron_h_biases", {"hybrid_override_pattern": "MM-E*"} | MORE).layers == 5
    keys = written(config)
    assert (keys["hybrid_override_pattern"], keys["num_hidden_layers"]) == (None, 4)
    older = {"layers_block_type": ["mamba", "attention", "mlp", "mamba"]}
    assert read("nemotron_h_biases", older) == config


MORE = {
    "num_hidden_layers": 5,
    "mlp_bias": False,
    "n_routed_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "moe_shared_expert_intermediate_size": 20,
}


def test_steps_of_nemotron_have_one_limit(read):
    mamba = read("nemotron_h", {"time_step_min": 0.2, "time_step_limit": [0.3, 0.4]}).mamba
    assert (mamba.least_step, mamba.most_step) == (0.2, math.inf)


def test_names_of_nemotron(read):
    names = names_of(read("nemotron_h_moe"))
    assert {
        "backbone.embeddings.weight",
        "backbone.norm_f.weight",
        "backbone.layers.0.mixer.A_log",
        "backbone.layers.1.mixer.experts.5.down_proj.weight",
        "backbone.layers.1.mixer.gate.e_score_correction_bias",
        "backbone.layers.1.mixer.shared_experts.up_proj.weight",
        "backbone.layers.2.mixer.q_proj.weight",
        "lm_head.weight",
    } <= names
    assert not [name for name in names if "gate_proj" in name]
    assert len([name for name in names if ".layers.1.norm" in name]) == 1


QUARTER = {"rope_type": "default", "partial_rotary_factor": 0.25}


def test_bamba_has_half_rotated_attention_in_a_few_layers(read, written):
    config = read("bamba")
    assert (config.mixers, config.rotary_width) == (("mamba", "attention", "mamba"), 4)
    assert read("bamba", {"attn_layer_indices": None}).mixers == ("mamba",) * 3
    assert written(config)["attn_layer_indices"] == [1]
    assert {
        "model.final_layernorm.weight",
        "model.layers.0.mamba.in_proj.weight",
        "model.layers.1.self_attn.q_proj.weight",
        "model.layers.1.pre_ff_layernorm.weight",
        "model.layers.1.feed_forward.down_proj.weight",
    } <= names_of(config)


def test_granite_with_and_without_experts(read, written):
    dense, sparse = read("granite_hybrid"), read("granite_hybrid_moe")
    assert (dense.feed_forward_width, dense.experts) == (40, 0)
    assert (sparse.feed_forward_width, sparse.shared_width, sparse.experts) == (48, 40, 6)
    assert all(dense.unrotated)
    assert not sparse.unrotated
    assert written(dense)["position_embedding_type"] is None
    assert written(sparse)["position_embedding_type"] == "rope"
    assert (dense.mamba.heads, dense.mamba.head_width) == (8, 8)


@pytest.mark.parametrize(
    "limit", [[0.0, math.inf], [0.0, {"__float__": "Infinity"}], [0.25, 0.5], None]
)
def test_limits_of_steps_of_granite(read, written, limit):
    config = read("granite_hybrid", {"time_step_limit": limit})
    expected = (0.25, 0.5) if limit == [0.25, 0.5] else (0.0, math.inf)
    assert (config.mamba.least_step, config.mamba.most_step) == expected
    assert read("granite_hybrid", written(config)) == config


@pytest.mark.parametrize(
    ("case", "keys", "words"),
    [
        ("nemotron_h", {"layers_block_type": ["conv"] * 5}, "layer type 'conv'"),
        ("nemotron_h", {"num_hidden_layers": 4}, "5 layer types with num_hidden_layers 4"),
        ("nemotron_h", {"layers_block_type": None}, "no layers_block_type"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act 'silu'"),
        ("nemotron_h", {"mamba_num_heads": 5}, "mamba_num_heads 5"),
        ("nemotron_h", {"tie_word_embeddings": True}, "tie_word_embeddings True"),
        ("nemotron_h_latent", {"moe_latent_size": 0}, "moe_latent_size"),
        ("nemotron_h_moe", {"mlp_bias": True}, "mlp_bias True"),
        ("granite_hybrid", {"hidden_act": "gelu"}, "activation 'gelu'"),
        ("granite_hybrid", {"position_embedding_type": "alibi"}, "position_embedding_type"),
        ("granite_hybrid", {"mamba_d_head": 7}, "mamba_d_head 7"),
        ("granite_hybrid", {"mamba_n_heads": 7}, "mamba_n_heads 7"),
        ("granite_hybrid", {"mamba_n_groups": 3}, "mamba_n_groups 3"),
        ("granite_hybrid", {"time_step_limit": [1.0]}, "time_step_limit"),
        ("bamba", {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ("bamba", {"partial_rotary_factor": 0.25}, "partial_rotary_factor 0.25"),
        ("bamba", {"rope_parameters": QUARTER}, "2 rotated elements of 8"),
        ("bamba", {"mamba_d_head": 7}, "mamba_d_head 7"),
    ],
)
def test_what_is_refused(read, case, keys, words):
    with pytest.raises(InputError, match=words):
        read(case, keys)
