"""Tests every family: three names of its own, and one place for each parameter."""

import dataclasses

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.model.decoder_config import ConvolutionConfig
from rl4p.model.families import FAMILIES
from rl4p.model.families.family import LAYER_NAMES, names
from rl4p.model.rope import Llama3Scaling
from tests.golden.cases import CASES, YARN, decoder_config, param_shapes


@pytest.mark.parametrize(
    ("model_type", "architecture", "classifier"),
    [
        ("qwen2", "Qwen2ForCausalLM", "Qwen2ForSequenceClassification"),
        ("qwen3", "Qwen3ForCausalLM", "Qwen3ForSequenceClassification"),
        ("qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeForSequenceClassification"),
        ("llama", "LlamaForCausalLM", "LlamaForSequenceClassification"),
        ("smollm3", "SmolLM3ForCausalLM", "SmolLM3ForSequenceClassification"),
        ("olmo3", "Olmo3ForCausalLM", "Olmo3ForSequenceClassification"),
        ("gpt_oss", "GptOssForCausalLM", "GptOssForSequenceClassification"),
        ("lfm2", "Lfm2ForCausalLM", "Lfm2ForSequenceClassification"),
        ("lfm2_moe", "Lfm2MoeForCausalLM", "Lfm2MoeForSequenceClassification"),
        ("nemotron_h", "NemotronHForCausalLM", "NemotronHForSequenceClassification"),
        ("phi3", "Phi3ForCausalLM", "Phi3ForSequenceClassification"),
        ("glm4", "Glm4ForCausalLM", "Glm4ForSequenceClassification"),
        ("mistral", "MistralForCausalLM", "MistralForSequenceClassification"),
        ("gemma2", "Gemma2ForCausalLM", "Gemma2ForSequenceClassification"),
        ("internlm3", "LlamaForCausalLM", "LlamaForSequenceClassification"),
        ("ernie4_5", "Ernie4_5ForCausalLM", "Ernie4_5ForSequenceClassification"),
        ("hyperclovax", "HyperCLOVAXForCausalLM", "HyperCLOVAXForSequenceClassification"),
        ("ministral", "MinistralForCausalLM", "MinistralForSequenceClassification"),
        ("cohere2", "Cohere2ForCausalLM", "Cohere2ForSequenceClassification"),
        ("ministral3", "Ministral3ForCausalLM", "Ministral3ForSequenceClassification"),
        ("exaone4", "Exaone4ForCausalLM", "Exaone4ForSequenceClassification"),
        ("gemma3_text", "Gemma3ForCausalLM", "Gemma3TextForSequenceClassification"),
        ("qwen3_next", "Qwen3NextForCausalLM", "Qwen3NextForSequenceClassification"),
        ("qwen3_5_text", "Qwen3_5ForCausalLM", "Qwen3_5TextForSequenceClassification"),
    ],
)
def test_a_family_has_the_names_of_transformers(model_type, architecture, classifier):
    family = FAMILIES[model_type]
    assert (family.model_type, family.architecture) == (model_type, architecture)
    assert family.classifier == classifier


def test_every_family_is_tested():
    assert {config["model_type"] for config in CASES.values()} == set(FAMILIES)


FIRST = {config["model_type"]: case for case, config in reversed(CASES.items())}


# All families take the names of tensors outside the layers from one function, so that a few cases
# have labels. Further cases of a family, with other options, are slow.
@pytest.mark.quick("llama-0", "gemma3-0", "gpt_oss-0", "qwen3_5-0", "deepseek_v3-0", "nemotron_h-0")
@pytest.mark.parametrize(
    ("case", "labels"),
    [
        *((case, 0) for case in FIRST.values()),
        *((case, 2) for case in ("llama", "qwen2", "gemma4", "nemotron_h")),
        *(pytest.param(x, 0, marks=pytest.mark.slow) for x in CASES if x not in FIRST.values()),
    ],
)
def test_each_part_of_each_parameter_stands_in_one_tensor(case, labels):
    config = dataclasses.replace(decoder_config(case), labels=labels)
    filled = jax.tree.map(lambda x: np.zeros(x.shape, int), param_shapes(config))
    elements = {}  # of the axis that is divided, in tensors with several parameters
    for tensor in FAMILIES[config.family].tensors(config):
        array = filled
        for key in tensor.path:
            array = array[key]
        array[tuple(i for i in (tensor.layer, tensor.expert) if i is not None)] += 1
        if tensor.part is not None:
            shape = tensor.of_file(
                array.shape[(tensor.layer is not None) + (tensor.expert is not None) :]
            )
            index = tensor.part.index_of(tuple(slice(0, size) for size in shape))
            counts = elements.setdefault(tensor.name, np.zeros(tensor.part.size, int))
            counts[index[tensor.part.axis]] += 1
    assert all((x == 1).all() for x in elements.values())
    assert all((x == 1).all() for x in jax.tree.leaves(filled))


@pytest.mark.parametrize(
    ("case", "key", "option", "default"),
    [
        ("qwen2", "tie_word_embeddings", "tied_embedding", False),
        ("qwen2", "rope_theta", "rope_theta", 10_000.0),
        ("qwen2", "head_dim", "head_width", 8),
        ("qwen2", "num_key_value_heads", "num_kv_heads", 4),
        ("qwen3", "head_dim", "head_width", 128),
        ("qwen3", "tie_word_embeddings", "tied_embedding", False),
        ("qwen3_moe", "norm_topk_prob", "normalized_experts", False),
        ("qwen3_moe", "tie_word_embeddings", "tied_embedding", False),
        ("qwen3_moe", "decoder_sparse_step", "experts", 6),
        ("qwen3_moe", "mlp_only_layers", "experts", 6),
        ("llama", "tie_word_embeddings", "tied_embedding", False),
        ("llama", "rope_theta", "rope_theta", 10_000.0),
        ("llama", "rope_scaling", "rope_scaling", None),
        ("llama", "head_dim", "head_width", 8),
        ("smollm3", "tie_word_embeddings", "tied_embedding", True),
        ("smollm3", "rope_theta", "rope_theta", 2_000_000.0),
        ("smollm3", "no_rope_layers", "unrotated", ()),
        ("olmo3", "tie_word_embeddings", "tied_embedding", False),
        ("olmo3", "rope_theta", "rope_theta", 500_000.0),
        ("olmo3", "rope_theta", "local_rope_theta", 500_000.0),
        ("olmo3", "rope_scaling", "rope_scaling", None),
        ("olmo3", "sliding_window", "window", 4096),
        ("olmo3", "layer_types", "sliding", (True, True, True)),
        ("gpt_oss", "tie_word_embeddings", "tied_embedding", False),
        ("gpt_oss", "head_dim", "head_width", 64),
        ("gpt_oss", "sliding_window", "window", 128),
        ("gpt_oss", "rope_theta", "rope_theta", 150_000.0),
        ("phi3", "tie_word_embeddings", "tied_embedding", False),
        ("phi3_window", "sliding_window", "window", None),
        ("glm", "head_dim", "head_width", 128),
        ("glm", "attention_bias", "attention_bias", True),
        ("internlm3", "head_dim", "head_width", 128),
        ("iquestcoder", "head_dim", "head_width", 128),
        ("seed_oss", "head_dim", "head_width", 128),
        ("seed_oss_biases", "attention_bias", "attention_bias", True),
        ("seed_oss_biases", "attention_out_bias", "output_bias", False),
        ("seed_oss_biases", "mlp_bias", "feed_forward_bias", False),
        ("ernie4_5", "head_dim", "head_width", 128),
        ("ernie4_5_biases", "use_bias", "feed_forward_bias", False),
        ("ernie4_5_biases", "tie_word_embeddings", "tied_embedding", True),
        ("ernie4_5", "rope_theta", "rope_theta", 500_000.0),
        ("helium", "rope_theta", "rope_theta", 100_000.0),
        ("helium", "head_dim", "head_width", 128),
        ("granite", "attention_multiplier", "query_scalar", 1.0),
        ("granite", "residual_multiplier", "residual_multiplier", 1.0),
        ("granite", "embedding_multiplier", "embedding_multiplier", 1.0),
        ("granite", "logits_scaling", "logits_multiplier", 1.0),
        ("hyperclovax_pre", "use_post_norm", "post_norms", True),
        ("ministral", "layer_types", "sliding", (True, True, True)),
        ("cohere", "tie_word_embeddings", "tied_embedding", True),
        ("cohere", "logit_scale", "logits_multiplier", 0.0625),
        ("cohere", "rope_theta", "rope_theta", 500_000.0),
        ("cohere2", "layer_types", "sliding", (True, True, True)),
        ("cohere2", "sliding_window", "window", 4096),
        ("glm4", "tie_word_embeddings", "tied_embedding", False),
        ("lfm2", "tie_word_embeddings", "tied_embedding", True),
        ("lfm2", "rope_theta", "rope_theta", 1_000_000.0),
        ("lfm2_biases", "full_attn_idxs", "mixers", ("attention",) * 3),
        ("lfm2_biases", "conv_bias", "convolution", ConvolutionConfig(kernel=3)),
        ("lfm2_biases", "block_auto_adjust_ff_dim", "feed_forward_width", 256),
        ("nemotron_h", "head_dim", "head_width", 128),
        ("nemotron_h_biases", "mlp_bias", "feed_forward_bias", False),
        ("granite_hybrid", "layer_types", "mixers", ("mamba",) * 3),
        ("granite_hybrid_moe", "position_embedding_type", "unrotated", (True,) * 3),
        ("apertus_scaled", "attention_bias", "attention_bias", False),
        (
            "apertus",
            "rope_theta",
            "rope_scaling",
            Llama3Scaling(
                factor=8.0,
                low_frequency_factor=1.0,
                high_frequency_factor=4.0,
                original_max_positions=8192,
            ),
        ),
        ("glm4", "head_dim", "head_width", 128),
        ("glm4", "partial_rotary_factor", "rotary_width", 8),
        ("gemma2", "attn_logit_softcapping", "attention_softcap", 50.0),
        ("gemma2", "final_logit_softcapping", "logits_softcap", 30.0),
        ("gemma2", "query_pre_attn_scalar", "query_scalar", 256.0),
        ("gemma2", "sliding_window", "window", 4096),
        ("gemma2", "head_dim", "head_width", 256),
        ("gemma2", "tie_word_embeddings", "tied_embedding", True),
        ("gemma2", "rope_theta", "rope_theta", 10_000.0),
        ("gemma3", "rope_local_base_freq", "local_rope_theta", 10_000.0),
        ("gemma3", "rope_theta", "rope_theta", 1_000_000.0),
        ("gemma3", "rope_scaling", "rope_scaling", None),
        ("gemma3", "sliding_window", "window", 4096),
        ("gemma3", "query_pre_attn_scalar", "query_scalar", 256.0),
        ("gemma3", "head_dim", "head_width", 256),
    ],
)
def test_an_absent_key_is_what_transformers_takes_it_for(read, case, key, option, default):
    assert getattr(read(case, without=[key]), option) == default


@pytest.mark.parametrize(
    ("case", "change", "sentence"),
    [
        (
            "qwen2_window",
            {"layer_types": ["full_attention"]},
            "layer_types has 1 entries, but num_hidden_layers",
        ),
        ("qwen2_window", {"sliding_window": None}, "has no 'sliding_window'"),
        ("qwen2_window", {"hidden_act": "gelu"}, "requires activation 'gelu'"),
        ("qwen3", {"hidden_act": "gelu"}, "requires activation 'gelu'"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, r"requires mlp_only_layers \[0\]"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "requires decoder_sparse_step 2"),
        (
            "qwen3_moe",
            {"num_experts_per_tok": 7},
            "num_experts_per_tok 7 is more than num_experts 6",
        ),
        ("qwen3_moe", {"hidden_act": "gelu"}, "requires activation 'gelu'"),
        ("qwen3_moe", {"moe_intermediate_size": None}, "has no 'moe_intermediate_size'"),
        ("qwen3_moe", {"num_experts": None}, "has no 'num_experts'"),
        ("llama", {"hidden_act": "gelu"}, "requires activation 'gelu'"),
        ("llama", {"partial_rotary_factor": 0.5}, "requires partial_rotary_factor 0.5"),
        ("smollm3", {"hidden_act": "gelu"}, "requires activation 'gelu'"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers must have a 0 or a 1 for each"),
        ("smollm3", {"no_rope_layers": [1, 2, 1]}, "no_rope_layers must have a 0 or a 1 for each"),
        ("smollm3_window", {"no_rope_layer_interval": 0}, "no_rope_layer_interval must be from 1"),
        ("smollm3", {"layer_types": ["sliding_attention"] * 3}, "requires layer type 'sliding_att"),
        ("olmo3", {"hidden_act": "gelu"}, "requires activation 'gelu'"),
        ("olmo3", {"rope_theta": 500.0}, "the bases of its full-attention and sliding layers diff"),
        ("olmo3", {"rope_scaling": YARN | {"truncate": False}}, "requires truncate false"),
        ("olmo3", {"sliding_window": None}, "requires sliding_window null"),
        ("gpt_oss", {"swiglu_limit": 5.0}, "requires swiglu_limit 5.0"),
        ("gpt_oss", {"swiglu_alpha": 1.0}, "requires swiglu_alpha 1.0"),
        ("gpt_oss", {"num_experts_per_tok": 7}, "num_experts_per_tok 7 is more than num_local_e"),
        ("gpt_oss", {"hidden_act": "gelu"}, "requires activation 'gelu'"),
        ("glm4", {"hidden_act": "gelu"}, "requires activation 'gelu'"),
        ("glm4", {"layer_types": ["sliding_attention"] * 3}, "requires layer type 'sliding_att"),
        ("granite", {"attention_multiplier": 0}, "requires attention_multiplier 0"),
        ("granite", {"logits_scaling": -2.0}, "requires logits_scaling -2"),
        ("internlm3", {"qkv_bias": False}, "requires qkv_bias False"),
        ("arcee", {"hidden_act": "silu"}, "requires activation 'silu'"),
        ("apertus", {"hidden_act": "relu2"}, "requires activation 'relu2'"),
        ("apertus", {"rope_theta": 500.0}, "requires rope_theta 500.0 without rope_scaling"),
        ("ministral", {"layer_types": ["chunked"] * 3}, "requires layer type 'chunked'"),
        ("cohere", {"use_qk_norm": True}, "requires use_qk_norm True"),
        ("cohere", {"hidden_act": "gelu"}, "requires activation 'gelu'"),
        ("cohere2", {"head_dim": 16}, "requires head_dim 16"),
        ("cohere2", {"sliding_window": None}, "requires sliding_window null"),
        ("mistral", {"layer_types": ["full_attention"] * 3}, r"requires layer_types \[.*\]"),
        ("mistral", {"hidden_act": "gelu"}, "requires activation 'gelu'"),
        ("mistral", {"sliding_window": "9"}, "sliding_window must be int, not '9'"),
        ("gemma2", {"hidden_activation": "gelu"}, "requires activation 'gelu'"),
        (
            "gemma2",
            {"use_bidirectional_attention": True},
            "requires use_bidirectional_attention True",
        ),
        ("gemma2", {"layer_types": ["chunked_attention"] * 3}, "layer type 'chunked_attention'"),
        (
            "gemma2",
            {"layer_types": [["sliding_attention"]] * 3},
            "layer type .'sliding_attention'.",
        ),
        ("gemma3", {"use_bidirectional_attention": True}, "requires use_bidirectional_attention"),
        (
            "gemma3",
            {"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2}}},
            "requires scaled positions in sliding-window layers",
        ),
        (
            "gemma3",
            {"rope_scaling": {"rope_type": "longrope", "factor": 2}},
            "requires rope type 'longrope'",
        ),
    ],
)
def test_what_the_decoder_does_not_do_is_refused(read, case, change, sentence):
    with pytest.raises(InputError, match=rf"^a/config\.json.* {sentence}"):
        read(case, change)


@pytest.mark.parametrize("case", ["qwen2", "qwen3", "qwen3_moe", "llama", "mistral_whole"])
def test_layers_do_not_slide_in_a_model_without_a_window(read, case):
    whole = read(case, {"layer_types": ["full_attention"] * 3} if case != "mistral_whole" else {})
    assert not whole.sliding
    for other in ("sliding_attention", "chunked_attention", ["full_attention"]):
        with pytest.raises(InputError, match=r"layer.type"):
            read(case, {"layer_types": ["full_attention", "full_attention", other]})


@pytest.mark.parametrize(
    ("case", "change", "sentence"),
    [
        ("llama", {"sliding_window": 9}, "requires sliding_window 9"),
        (
            "qwen3_moe",
            {
                "use_sliding_window": True,
                "sliding_window": 9,
                "layer_types": ["full_attention"] * 3,
            },
            "requires layer_types",
        ),
        ("gemma2", {"sliding_window": None}, "requires sliding_window null"),
    ],
)
def test_windows_that_transformers_reads_otherwise_are_refused(read, case, change, sentence):
    with pytest.raises(InputError, match=sentence):
        read(case, change)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("input_layernorm", ("attention_norm", "scale")),
        ("post_attention_layernorm", ("feed_forward_norm", "scale")),
        ("self_attn.q_proj", ("query", "kernel")),
        ("self_attn.k_proj", ("key", "kernel")),
        ("self_attn.v_proj", ("value", "kernel")),
        ("self_attn.o_proj", ("output", "kernel")),
        ("mlp.gate_proj", ("gate", "kernel")),
        ("mlp.up_proj", ("up", "kernel")),
        ("mlp.down_proj", ("down", "kernel")),
    ],
)
def test_a_parameter_of_a_layer(name, path):
    """Kernels are transposed in the files, [out, in]; norms are not."""
    by_name = {tensor.name: tensor for tensor in names(decoder_config("llama"), LAYER_NAMES)}
    for layer in range(3):
        tensor = by_name[f"model.layers.{layer}.{name}.weight"]
        assert (tensor.path, tensor.layer, tensor.expert) == (("layers", *path), layer, None)
        assert tensor.transposed is (path[1] == "kernel")


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"tied_embedding": True}, set()),
        ({"tied_embedding": False}, {"lm_head.weight": ("head",)}),
        ({"tied_embedding": True, "labels": 3}, {"score.weight": ("score",)}),
        ({"tied_embedding": False, "labels": 3}, {"score.weight": ("score",)}),
    ],
)
def test_what_stands_beside_the_layers(change, expected):
    """The embedding is [V, D] here and in the files."""
    config = dataclasses.replace(decoder_config("llama"), **change)
    beside = [tensor for tensor in names(config, LAYER_NAMES) if tensor.layer is None]
    assert {tensor.name: tensor.path for tensor in beside} == {
        "model.embed_tokens.weight": ("embedding",),
        "model.norm.weight": ("norm", "scale"),
        **dict(expected),
    }
    assert not any(tensor.transposed for tensor in beside)
