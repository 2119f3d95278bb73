"""One small config.json for each family and option, with the keys of folders on the hub.

The numbers make every option matter: caps are near the values that they cap, windows are shorter
than the sequences, and scalars are not the defaults.
"""

import zlib
from functools import cache

import jax
import numpy as np

from rl4p.model.decoder import Decoder, DecoderConfig
from rl4p.model.families import FAMILIES, family_of
from rl4p.model.families.keys import Config, Keys

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500.0,
    "tie_word_embeddings": False,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 4.0,
    "beta_slow": 0.5,
}
GEMMA = {
    "head_dim": 16,  # differs from width / heads
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 10,
    "sliding_window": 9,
    "tie_word_embeddings": True,
}
GEMMA4 = {
    "model_type": "gemma4_text",
    "num_hidden_layers": 5,
    "head_dim": 8,
    "global_head_dim": 16,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0,
    "sliding_window": 9,
    "layer_types": [("sliding_attention", "full_attention")[i] for i in (0, 1, 0, 0, 1)],
    "rope_theta": None,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "proportional",
            "rope_theta": 500.0,
            "partial_rotary_factor": 0.5,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
    },
    "final_logit_softcapping": 3.0,
    "tie_word_embeddings": True,
}
COHERE = {
    "pad_token_id": None,
    "layer_norm_eps": 1e-4,
    "logit_scale": 0.7,
    "tie_word_embeddings": True,
}
FACTORS = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 1.7,
}
LFM2 = {"norm_eps": 1e-5, "layer_types": ["conv", "full_attention", "conv"]}
NEMOTRON = {
    "model_type": "nemotron_h",
    "layer_norm_epsilon": 1e-5,
    "head_dim": 16,
    "mamba_num_heads": 4,
    "mamba_head_dim": 6,
    "n_groups": 2,
    "ssm_state_size": 5,
    "conv_kernel": 3,
    # While transformers decodes token by token, it does not cut steps as it does in whole rows.
    "time_step_min": 1e-9,
}
GRANITE_HYBRID = FACTORS | {
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba", "attention", "mamba"],
    "shared_intermediate_size": 40,
    "mamba_n_heads": 8,
    "mamba_n_groups": 2,
    "mamba_d_state": 5,
}
BAMBA = {"model_type": "bamba", "mamba_n_heads": 8, "mamba_d_state": 5, "mamba_d_conv": 3}
MOE = {
    "model_type": "qwen3_moe",
    "moe_intermediate_size": 24,
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}
SIGMOID = {
    "moe_intermediate_size": 24,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 2,
    "routed_scaling_factor": 1.7,
    "pad_token_id": None,
}
GROUPS = {"n_group": 4, "topk_group": 2}
DELTA = {
    "head_dim": 16,
    "num_hidden_layers": 5,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
}
LLAMA4 = {
    "model_type": "llama4_text",
    "intermediate_size": 24,
    "intermediate_size_mlp": 48,
    "num_local_experts": 8,
    "num_experts_per_tok": 1,
    "attention_chunk_size": 9,
    "floor_scale": 5,
    "attn_scale": 0.3,
}
LATENT = {
    "num_key_value_heads": 4,
    "head_dim": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 8,
    "pad_token_id": None,
}
CASES = {
    name: SHAPE | options
    for name, options in {
        "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
        "qwen2_window": {
            "model_type": "qwen2",
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 1,
        },
        "qwen3": {"model_type": "qwen3", "head_dim": 16},
        "qwen3_biases": {"model_type": "qwen3", "head_dim": 16, "attention_bias": True},
        "llama": {"model_type": "llama", "rope_scaling": LLAMA3},
        "llama_linear": {
            "model_type": "llama",
            "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            "tie_word_embeddings": True,
        },
        "llama_yarn": {"model_type": "llama", "rope_scaling": YARN},
        "llama_dynamic": {
            "model_type": "llama",
            "rope_scaling": {"rope_type": "dynamic", "factor": 4.0},
        },
        "llama_biases": {"model_type": "llama", "attention_bias": True, "mlp_bias": True},
        "internlm3": {
            "model_type": "internlm3",
            "pad_token_id": None,
            "head_dim": 16,
            "max_position_embeddings": 128,
            "attention_bias": True,
            "mlp_bias": True,
        },
        "iquestcoder": {
            "model_type": "iquestcoder",
            "head_dim": 16,
            "max_position_embeddings": 128,
        },
        "seed_oss": {"model_type": "seed_oss", "head_dim": 16, "pad_token_id": None},
        "seed_oss_biases": {
            "model_type": "seed_oss",
            "pad_token_id": None,
            "max_position_embeddings": 128,
            "attention_bias": False,
            "attention_out_bias": True,
            "mlp_bias": True,
        },
        "ernie4_5": {
            "model_type": "ernie4_5",
            "pad_token_id": None,
            "head_dim": 16,
            "max_position_embeddings": 128,
            "tie_word_embeddings": True,
        },
        "ernie4_5_biases": {"model_type": "ernie4_5", "pad_token_id": None, "use_bias": True},
        "helium": {
            "model_type": "helium",
            "pad_token_id": None,
            "max_position_embeddings": 128,
            "attention_bias": True,
            "mlp_bias": True,
        },
        "glm": {"model_type": "glm", "pad_token_id": None, "head_dim": 16},
        "granite": FACTORS | {"model_type": "granite", "tie_word_embeddings": True},
        "hyperclovax": FACTORS | {"model_type": "hyperclovax", "use_post_norm": True},
        "hyperclovax_pre": FACTORS
        | {"model_type": "hyperclovax", "use_post_norm": False, "attention_bias": True},
        "olmo2": {"model_type": "olmo2", "pad_token_id": None, "attention_bias": True},
        "arcee": {"model_type": "arcee", "hidden_act": "relu2", "rope_scaling": YARN},
        "arcee_biases": {
            "model_type": "arcee",
            "hidden_act": "relu2",
            "attention_bias": True,
            "mlp_bias": True,
        },
        "apertus": {
            "model_type": "apertus",
            "pad_token_id": None,
            "rope_theta": None,
            "attention_bias": True,
        },
        "apertus_scaled": {"model_type": "apertus", "pad_token_id": None, "rope_scaling": YARN},
        "smollm3": {
            "model_type": "smollm3",
            "no_rope_layers": [1, 0, 1],
            "pad_token_id": None,
            "tie_word_embeddings": True,
        },
        "smollm3_window": {
            "model_type": "smollm3",
            "no_rope_layer_interval": 2,
            "pad_token_id": None,
            "use_sliding_window": True,
            "sliding_window": 9,
            "attention_bias": True,
            "mlp_bias": True,
        },
        "olmo3": {
            "model_type": "olmo3",
            "pad_token_id": None,
            "rope_theta": 500_000.0,
            "rope_scaling": YARN | {"attention_factor": 1.1},
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        "gpt_oss": {
            "model_type": "gpt_oss",
            "head_dim": 16,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "rope_scaling": YARN | {"truncate": False},
            "sliding_window": 9,
        },
        "lfm2": LFM2
        | {
            "model_type": "lfm2",
            "conv_L_cache": 4,
            "block_multiple_of": 8,
            "block_ffn_dim_multiplier": 1.3,
        },
        "lfm2_moe": LFM2
        | {
            "model_type": "lfm2_moe",
            "num_dense_layers": 1,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "routed_scaling_factor": 1.5,
        },
        "lfm2_biases": {
            "model_type": "lfm2",
            "norm_eps": 1e-5,
            "full_attn_idxs": [1],
            "conv_bias": True,
            "block_auto_adjust_ff_dim": False,
            "tie_embedding": True,
        },
        "nemotron_h": NEMOTRON
        | {
            "num_hidden_layers": 5,
            "layers_block_type": [
                *("linear_attention", "mlp", "full_attention", "linear_attention", "mlp"),
            ],
        },
        "nemotron_h_biases": NEMOTRON
        | {
            "num_hidden_layers": 4,
            "hybrid_override_pattern": "M*-M",
            "n_groups": 1,
            "use_bias": True,
            "use_conv_bias": False,
            "mlp_bias": True,
        },
        "nemotron_h_moe": NEMOTRON
        | {
            "layers_block_type": ["linear_attention", "moe", "full_attention"],
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 20,
            "n_group": 2,
            "topk_group": 1,
            "routed_scaling_factor": 1.5,
        },
        "nemotron_h_latent": NEMOTRON
        | {
            "layers_block_type": ["linear_attention", "moe", "full_attention"],
            "n_routed_experts": 6,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 24,
            "moe_shared_expert_intermediate_size": 20,
            "moe_latent_size": 12,
            "norm_topk_prob": False,
        },
        "granite_hybrid_moe": GRANITE_HYBRID
        | {
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "position_embedding_type": "rope",
            "mamba_proj_bias": True,
        },
        "granite_hybrid": GRANITE_HYBRID | {"num_local_experts": 0, "num_experts_per_tok": 0},
        "bamba": BAMBA | {"attn_layer_indices": [1], "mamba_n_groups": 2},
        "bamba_biases": BAMBA
        | {
            "attn_layer_indices": [0, 2],
            "attention_bias": True,
            "mlp_bias": True,
            "mamba_proj_bias": True,
            "rope_scaling": YARN,
        },
        "phi3": {
            "model_type": "phi3",
            "pad_token_id": None,
            "partial_rotary_factor": 0.75,
            "hidden_size": 64,  # whose heads have 16 elements
            "head_dim": 16,
            "max_position_embeddings": 512,
            "original_max_position_embeddings": 128,
            "rope_scaling": {
                "type": "longrope",
                "short_factor": [1.0, 1.1, 1.5, 2.0, 3.0, 4.0],
                "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            },
            "tie_word_embeddings": True,
        },
        "phi3_window": {
            "model_type": "phi3",
            "pad_token_id": None,
            "sliding_window": 9,
        },
        "glm4": {"model_type": "glm4", "pad_token_id": None, "head_dim": 16},
        "mistral": {"model_type": "mistral", "sliding_window": 9},
        "cohere": COHERE | {"model_type": "cohere", "head_dim": 16, "attention_bias": True},
        "cohere2": COHERE
        | {
            "model_type": "cohere2",
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        "mistral_whole": {"model_type": "mistral", "sliding_window": None},
        "ministral": {
            "model_type": "ministral",
            "sliding_window": 9,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        "gemma2": GEMMA
        | {
            "model_type": "gemma2",
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
        "gemma3": GEMMA
        | {
            "model_type": "gemma3_text",
            "sliding_window_pattern": 3,
            "rope_local_base_freq": 50.0,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        "mixtral": {
            "model_type": "mixtral",
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "sliding_window": 9,
        },
        "qwen2_moe": MOE | {"model_type": "qwen2_moe", "shared_expert_intermediate_size": 20},
        "olmoe": MOE | {"model_type": "olmoe", "pad_token_id": None, "attention_bias": True},
        "granitemoe": FACTORS
        | {"model_type": "granitemoe", "num_local_experts": 6, "num_experts_per_tok": 2},
        "minimax_m2": {
            "model_type": "minimax_m2",
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "rotary_dim": 4,
        },
        "solar_open": SIGMOID
        | GROUPS
        | {"model_type": "solar_open", "head_dim": 16, "attention_bias": True},
        "qwen2_moe_dense": MOE
        | {
            "model_type": "qwen2_moe",
            "shared_expert_intermediate_size": 20,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
            "qkv_bias": False,
            "use_sliding_window": True,
            "sliding_window": 9,
            "max_window_layers": 2,
        },
        "glm4_moe": SIGMOID
        | {"model_type": "glm4_moe", "attention_bias": True, "first_k_dense_replace": 1},
        "glm4_moe_norms": SIGMOID
        | GROUPS
        | {
            "model_type": "glm4_moe",
            "use_qk_norm": True,
            "first_k_dense_replace": 2,
            "partial_rotary_factor": 0.25,
            "head_dim": 16,
        },
        "dots1": SIGMOID
        | GROUPS
        | {
            "model_type": "dots1",
            "first_k_dense_replace": 1,
            "sliding_window": 9,
            "max_window_layers": 1,
            "attention_bias": True,
        },
        "exaone_moe": SIGMOID
        | GROUPS
        | {
            "model_type": "exaone_moe",
            "num_experts": 8,
            "num_shared_experts": 1,
            "sliding_window": 9,
            "sliding_window_pattern": 2,
            "first_k_dense_replace": 1,
        },
        "ernie4_5_moe": {
            "model_type": "ernie4_5_moe",
            "moe_intermediate_size": 24,
            "moe_num_experts": 6,
            "moe_k": 2,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "tie_word_embeddings": True,
        },
        "hy_v3": SIGMOID
        | {"model_type": "hy_v3", "num_experts": 6, "num_shared_experts": 1, "head_dim": 16},
        "hunyuan_v1_moe": {
            "model_type": "hunyuan_v1_moe",
            "num_experts": 6,
            "moe_topk": 2,
            "rope_scaling": {"type": "dynamic", "alpha": 9.0, "factor": 1.0},
        },
        "hunyuan_v1_dense": {
            "model_type": "hunyuan_v1_dense",
            "head_dim": 16,
            "attention_bias": True,
            "tie_word_embeddings": True,
        },
        "flint": MOE
        | {
            "model_type": "flint",
            "num_hidden_layers": 4,
            "shared_expert_intermediate_size": 20,
            "layer_types": ["full_attention", *["sliding_attention"] * 2, "full_attention"],
            "mlp_only_layers": [0, 1],
            "sliding_window": 9,
            "norm_topk_prob": True,
        },
        "qwen3_next": MOE
        | DELTA
        | {
            "model_type": "qwen3_next",
            "shared_expert_intermediate_size": 20,
            "decoder_sparse_step": 2,
            "attention_bias": True,
        },
        "qwen3_5": DELTA | {"model_type": "qwen3_5_text", "tie_word_embeddings": True},
        "qwen3_5_whole": DELTA
        | {
            "model_type": "qwen3_5_text",
            "linear_num_key_heads": 4,
            "linear_conv_kernel_dim": 3,
            "partial_rotary_factor": 1.0,
            "attention_bias": True,
            "num_hidden_layers": 3,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        },
        "qwen3_5_moe": DELTA
        | {
            "model_type": "qwen3_5_moe_text",
            "moe_intermediate_size": 24,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "shared_expert_intermediate_size": 20,
        },
        "youtu": LATENT
        | {
            "model_type": "youtu",
            "attention_bias": True,
            "rope_interleave": False,
            "rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 0.9},
        },
        "deepseek_v3": LATENT
        | SIGMOID
        | GROUPS
        | {"model_type": "deepseek_v3", "first_k_dense_replace": 1},
        "deepseek_v2": LATENT
        | SIGMOID
        | GROUPS
        | {
            "model_type": "deepseek_v2",
            "q_lora_rank": None,
            "topk_method": "group_limited_greedy",
            "rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 0.7},
        },
        "mistral4": LATENT
        | SIGMOID
        | GROUPS
        | {
            "model_type": "mistral4",
            "head_dim": 10,
            "rope_parameters": YARN
            | {
                "rope_theta": 500.0,
                "original_max_position_embeddings": 16,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.3,
            },
            "first_k_dense_replace": 1,
        },
        "glm4_moe_lite": LATENT
        | SIGMOID
        | {"model_type": "glm4_moe_lite", "mlp_layer_types": ["sparse", "dense", "sparse"]},
        "minicpm3": LATENT
        | {
            "model_type": "minicpm3",
            "q_lora_rank": None,
            "scale_emb": 3,
            "scale_depth": 0.9,
            "dim_model_base": 24,
            "rope_scaling": {
                "rope_type": "longrope",
                "short_factor": [1.0, 1.5],
                "long_factor": [2.0, 5.0],
                "original_max_position_embeddings": 128,
            },
            "tie_word_embeddings": True,
        },
        "ministral3": {
            "model_type": "ministral3",
            "pad_token_id": None,
            "sliding_window": 19,
            "rope_parameters": YARN
            | {
                "original_max_position_embeddings": 8,
                "rope_theta": 500.0,
                "llama_4_scaling_beta": 0.3,
            },
        },
        "exaone4": {
            "model_type": "exaone4",
            "num_hidden_layers": 4,
            "sliding_window": 9,
            "sliding_window_pattern": 2,
        },
        "exaone4_whole": {
            "model_type": "exaone4",
            "sliding_window": None,
            "layer_types": ["full_attention"] * 3,
        },
        "llama4": LLAMA4
        | {
            "num_hidden_layers": 4,
            "no_rope_layers": [],
            "interleave_moe_layer_step": 2,
            "rope_scaling": LLAMA3 | {"high_freq_factor": 1.0},
        },
        "llama4_untuned": LLAMA4
        | {
            "num_experts_per_tok": 2,
            "no_rope_layers": [1, 0, 1],
            "layer_types": ["full_attention", "chunked_attention", "chunked_attention"],
            "use_qk_norm": False,
            "attn_temperature_tuning": False,
        },
        "gemma4": GEMMA4
        | {
            "attention_k_eq_v": True,
            "num_key_value_heads": 4,
            "num_global_key_value_heads": 2,
            "use_bidirectional_attention": "vision",
        },
        "gemma4_moe": GEMMA4
        | {
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "enable_moe_block": True,
            "num_experts": 8,
            "top_k_experts": 3,
            "moe_intermediate_size": 24,
        },
        "gemma4_shared": GEMMA4
        | {
            "num_kv_shared_layers": 2,
            "global_head_dim": 8,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 16,
            "vocab_size_per_layer_input": 64,
        },
        "qwen3_moe": MOE | {"norm_topk_prob": True},
        "qwen3_moe_raw": MOE | {"norm_topk_prob": False, "tie_word_embeddings": True},
    }.items()
}


def decoder_config(case: str) -> DecoderConfig:
    config = CASES[case]
    return family_of(config, case).read_config(Keys(config, case))


def changed_config(case: str, **changes: object) -> tuple[DecoderConfig, Config]:
    """Returns what is read of a case with other keys, and the keys; "absent" leaves one out."""
    config = Config({key: x for key, x in (CASES[case] | changes).items() if x != "absent"})
    return family_of(config, case).read_config(Keys(config, case)), config


@cache
def param_shapes(config: DecoderConfig) -> dict:
    """Returns the shapes of the parameters, whose layers take most of a second to trace."""
    return jax.eval_shape(Decoder(config=config).init, jax.random.key(0))


def expected_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every tensor in the files."""
    shapes, result = param_shapes(config), {}
    for tensor in FAMILIES[config.family].tensors(config):
        indexed = (tensor.layer is not None) + (tensor.expert is not None)
        shape = tensor.of_file(leaf(shapes, tensor.path).shape[indexed:])
        result[tensor.name] = tensor.part.whole(shape) if tensor.part else shape
    return result


def noise(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Returns noise of variance one, seeded by name; NumPy has never changed `random()`."""
    random = np.random.default_rng(zlib.crc32(name.encode()))
    return ((random.random(shape) - 0.5) * 12**0.5).astype(np.float32)


def make_tensors(config: DecoderConfig) -> dict[str, np.ndarray]:
    """Returns weights that can be drawn again and need not be stored."""
    tensors = {}
    for name, shape in expected_shapes(config).items():
        if name.endswith(("norm.weight", "layer_scalar")):
            scale, offset = 0.3, 0 if config.centered_norm else 1
        elif name.endswith("act_fn.eps"):
            scale, offset = 1e-2, -0.1
        elif len(shape) < 2 or name.endswith("bias"):
            scale, offset = 0.5, 0
        elif name.endswith("gate_up_proj"):  # of GPT-OSS, [E, in, out], which is cut at 7
            scale, offset = 4 * shape[-2] ** -0.5, 0
        elif "embed_tokens" in name:
            scale, offset = 0.3, 0
        else:
            scale, offset = 1.5 * shape[-1] ** -0.5, 0
        tensors[name] = np.asarray(np.float32(scale) * noise(name, shape) + np.float32(offset))
    return tensors


def sequences() -> list[np.ndarray]:
    """Returns sequences of 1, 12 and 40 tokens."""
    return [np.random.default_rng(n).integers(0, SHAPE["vocab_size"], n) for n in (1, 12, 40)]


def to_params(config: DecoderConfig, tensors: dict[str, np.ndarray]) -> dict:
    """Returns parameters for the tensors of the files, by the family's names."""
    params = jax.tree.map(lambda x: np.full(x.shape, np.nan, np.float32), param_shapes(config))
    for path, layer, expert, name, transposed, part in FAMILIES[config.family].tensors(config):
        place = tuple(i for i in (layer, expert) if i is not None)
        into = leaf(params, path)[(*place, ...)]
        into = into.swapaxes(-1, -2) if transposed else into
        into[...] = tensors[name][part_index(part, into.shape)]
    return params


def to_tensors(config: DecoderConfig, params: dict) -> dict[str, np.ndarray]:
    """Returns the tensors of the files for parameters, or for a tree of their shape."""
    tensors = {}
    for path, layer, expert, name, transposed, part in FAMILIES[config.family].tensors(config):
        array = np.asarray(leaf(params, path))[tuple(i for i in (layer, expert) if i is not None)]
        array = array.swapaxes(-1, -2) if transposed else array
        whole = tensors.setdefault(
            name, np.full(part.whole(array.shape) if part else array.shape, np.nan, array.dtype)
        )
        whole[part_index(part, array.shape)] = array
    return tensors


def part_index(part, shape):
    return part.index_of(tuple(slice(0, size) for size in shape)) if part else ...


def leaf(tree, path):
    for key in path:
        tree = tree[key]
    return tree
