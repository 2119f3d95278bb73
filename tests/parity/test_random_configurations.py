"""Draws small configurations of each family: the logits of transformers, or one sentence.

RL4P_CONFIGURATIONS is the number of configurations per family (`make parity` takes 4).
"""

import os
import re
import zlib
from copy import deepcopy

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import read_config, read_params
from tests.golden import forward
from tests.support.random_models import in_float64, register_models

pytestmark = pytest.mark.parity
CONSTANT = "correction|layer_scalar|act_fn"
COUNT = int(os.environ.get("RL4P_CONFIGURATIONS", "4"))
LIMIT, READS = 1e-5, 1e-4  # of the largest logit; the norm of a delta rule passes on rounding
TOKENS = np.random.default_rng(1).integers(0, 64, 40)

# Each key takes one of these values, drawn for each configuration; "-" leaves it out.
SHAPES = {
    "vocab_size": [64],
    "hidden_size": [32, 48],
    "intermediate_size": [40],
    "num_hidden_layers": [1, 2, 3],
    "num_attention_heads": [4, 2],
    "num_key_value_heads": [2, 1],
    "head_dim": [8, 16, "-"],
    "max_position_embeddings": [64, 512],
    "rms_norm_eps": [1e-6, 1e-2],
    "hidden_act": ["silu", "silu", "silu", "gelu"],
    "tie_word_embeddings": [True, False],
    "pad_token_id": [0],
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 77.0},
        {"rope_type": "linear", "rope_theta": 5e3, "factor": 3.0},
        {"rope_type": "dynamic", "rope_theta": 5e3, "factor": 3.0},
        {"rope_type": "yarn", "rope_theta": 5e2, "factor": 4.0, "beta_fast": 4.0, "mscale": 0.7},
        {
            "rope_type": "llama3",
            "rope_theta": 5e2,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        "-",
    ],
    "attention_bias": [True, False],
}
YARN = {"rope_type": "yarn", "rope_theta": 5e2, "factor": 4.0, "beta_fast": 4.0}
MLP_BIAS = {"mlp_bias": [True, False]}
WINDOW = {"sliding_window": [5, 9, None]}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
FACTORS = {
    "embedding_multiplier": [1.0, 3.0],
    "residual_multiplier": [1.0, 0.3],
    "attention_multiplier": [1.0, 0.2, "-"],
    "logits_scaling": [1.0, 1.7, 4],
}
MAMBA = {
    "num_hidden_layers": [3],
    "layer_norm_epsilon": [1e-5, 1e-2],
    "layers_block_type": [
        ["linear_attention", "full_attention", "mlp"],
        ["mamba", "mlp", "linear_attention"],
        ["mlp", "attention", "mlp"],
        ["moe", "full_attention", "linear_attention"],
    ],
    "mamba_num_heads": [4, 8],
    "mamba_head_dim": [3, 8],
    "n_groups": [1, 2, 4],
    "ssm_state_size": [5, 8],
    "conv_kernel": [1, 2, 4, "-"],
    "chunk_size": [8, 128],
    "use_bias": [True, False],
    "use_conv_bias": [True, False],
    "mlp_bias": [True, False, False],
    "attention_bias": [False],
    "tie_word_embeddings": [False, False, False, False, True],
    "rope_parameters": ["-"],
    "time_step_min": [0.001, 0.3, 0.8, "-"],
    "time_step_limit": ["-", (0.5, 1.0)],
    "expand": [2, 3],
    "mlp_hidden_act": ["relu2", "relu2", "relu2", "-", "silu"],
    "n_routed_experts": [8],
    "num_experts_per_tok": [2, 3],
    "moe_intermediate_size": [24],
    "moe_shared_expert_intermediate_size": [20, 56],
    "n_group": [1, 2],
    "topk_group": [1, 2],
    "norm_topk_prob": [True, False],
    "routed_scaling_factor": [1.0, 2.5],
    "moe_latent_size": ["-", "-", "-", "-", 16],
    "residual_in_fp32": [True, False],
}
GRANITE_4 = FACTORS | {
    "layer_types": [["mamba", "attention", "mamba"], ["full_attention"] * 3, "-"],
    "position_embedding_type": ["-", "rope", "nope", None],
    "num_local_experts": [0, 0, 4, "-"],
    "num_experts_per_tok": [2],
    "shared_intermediate_size": [24, 40],
    "mamba_n_heads": [4, 8, 16],
    "mamba_n_groups": [1, 2, 4],
    "mamba_d_state": [5, 8],
    "mamba_d_head": ["-", "auto"],
    "mamba_d_conv": [1, 2, 4, "-"],
    "mamba_expand": [2, 1, "-"],
    "mamba_chunk_size": [8, 256],
    "mamba_conv_bias": [True, False],
    "mamba_proj_bias": [True, False],
    "time_step_limit": ["-", (0.0, float("inf")), (0.5, 1.0), (0.0, 0.6)],
}
LFM2 = {
    "norm_eps": [1e-5, 1e-2],
    "layer_types": [["conv", "full_attention", "conv"], ["full_attention", "conv", "conv"]],
    "conv_L_cache": [1, 2, 3, 5, "-"],
    "conv_bias": [True, False],
    "tie_embedding": ["-", True, False],
}
LATENT = {
    "num_attention_heads": [4],
    "num_key_value_heads": [4],
    "head_dim": ["-"],
    "q_lora_rank": [12, 20, None],
    "kv_lora_rank": [8, 16],
    "qk_nope_head_dim": [6, 8],
    "qk_rope_head_dim": [8, 6],
    "v_head_dim": [6, 8, 16],
    "rope_parameters": [
        *SHAPES["rope_parameters"],
        YARN,
        YARN | {"mscale": 0.7, "mscale_all_dim": 0.9},
        YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "truncate": False},
    ],
}
GROWING = YARN | {"original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.2}
EXPERTS = {
    "moe_intermediate_size": [24],
    "n_routed_experts": [6, 12],
    "num_experts_per_tok": [2, 3],
    "n_shared_experts": [1, 2],
    "n_group": [1, 3],
    "topk_group": [1, 2],
    "routed_scaling_factor": [1.0, 2.5],
    "norm_topk_prob": [True, False],
}
DELTA = {
    "head_dim": [8, 16],
    "num_hidden_layers": [2, 3, 5],
    "full_attention_interval": [2, 3, "-"],
    "layer_types": ["-", "-", ["full_attention", *["linear_attention"] * 4]],
    "linear_num_key_heads": [1, 2],
    "linear_num_value_heads": [2, 4],
    "linear_key_head_dim": [4, 8],
    "linear_value_head_dim": [4, 12],
    "linear_conv_kernel_dim": [2, 3, 4, "-"],
    "partial_rotary_factor": [0.5, 1.0, 0.25, "-"],
}
DELTA_EXPERTS = DELTA | {
    "moe_intermediate_size": [16, 24],
    "num_experts": [4, 6],
    "num_experts_per_tok": [1, 2, 4],
    "shared_expert_intermediate_size": [16, 20],
}
GEMMA4 = {
    "num_hidden_layers": [2, 3, 5],
    "head_dim": [8, 16],
    "global_head_dim": [8, 16],
    "num_global_key_value_heads": [1, 2, "-"],
    "attention_k_eq_v": [True, False],
    "hidden_act": ["-"],
    "hidden_activation": ["gelu_pytorch_tanh"],
    "layer_types": [["sliding_attention", "full_attention"] * 3, ["full_attention"] * 5, "-"],
    "sliding_window": [5, 9],
    "rope_parameters": [
        {
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 500.0,
                "partial_rotary_factor": 0.5,
                "factor": 2.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
        {
            "full_attention": {"rope_type": "default", "rope_theta": 500.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
        },
        "-",
    ],
    "final_logit_softcapping": [None, 3.0],
    "hidden_size_per_layer_input": [0, 16, 16],
    "vocab_size_per_layer_input": [64],
    "num_kv_shared_layers": [0, 0, 1, 2],
    "use_double_wide_mlp": [True, False],
    "use_bidirectional_attention": [None, "vision"],
    "enable_moe_block": [False, False, True],
    "num_experts": [6],
    "top_k_experts": [1, 2, 3],
    "moe_intermediate_size": [24],
}
CHOSEN = {
    "num_experts": [8],
    "num_experts_per_tok": [1, 2, 3],
    "moe_intermediate_size": [24],
    "norm_topk_prob": [True, False],
}
SHARED = {"shared_expert_intermediate_size": [20]}
STEPS = {"decoder_sparse_step": [1, 1, 2], "mlp_only_layers": [[], [0], "-"]}
GROUPED = {
    "n_group": [1, 1, 4, 2],
    "topk_group": [1, 1, 2],
    "routed_scaling_factor": [1.0, 2.5],
    "num_experts_per_tok": [1, 2, 3],
    "moe_intermediate_size": [24],
    "norm_topk_prob": [True, False],
}
ROUTED = GROUPED | {"n_routed_experts": [8], "n_shared_experts": [1, 2]}
SPARSE = {"mlp_layer_types": ["-", "-", ["sparse"] * 3, ["sparse", "dense", "sparse"]]}
ROTATED = {"partial_rotary_factor": [0.5, 1.0, 0.25, "-"], "head_dim": [16]}
STRETCHED = {"rope_type": "dynamic", "rope_theta": 77.0, "alpha": 50.0, "factor": 1.0}
HUNYUAN = {"head_dim": [8, 16], "rope_parameters": [*SHAPES["rope_parameters"], *[STRETCHED] * 4]}
FAMILIES = {
    "gemma4_text": GEMMA4,
    "ministral3": WINDOW
    | {
        "rope_parameters": [
            {
                "rope_type": "yarn",
                "rope_theta": 5e2,
                "factor": factor,
                "original_max_position_embeddings": original,
                "llama_4_scaling_beta": beta,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            }
            for factor, original, beta in ((4.0, 16, 0.1), (2.0, 8, 0.5), (1.0, 64, 0.3))
        ]
    },
    "exaone4": WINDOW
    | {
        "sliding_window_pattern": [2, 3, "-"],
        "layer_types": [MIXED, ["full_attention"] * 3, "-"],
    },
    "lfm2": LFM2
    | {
        "layer_types": [*LFM2["layer_types"], "-", "-"],
        "full_attn_idxs": [[0], [1, 2], "-"],
        "block_multiple_of": [8, 256, "-"],
        "block_ffn_dim_multiplier": [1.0, 1.3, "-"],
        "block_auto_adjust_ff_dim": [True, False],
        "block_ff_dim": ["-", "-", 56],
    },
    "lfm2_moe": LFM2
    | {
        "num_hidden_layers": [3],
        "num_dense_layers": [0, 1, 2],
        "num_experts": [4, 6],
        "num_experts_per_tok": [1, 2],
        "moe_intermediate_size": [24],
        "use_expert_bias": [True, False],
        "norm_topk_prob": [True, False, "-"],
        "routed_scaling_factor": [1.0, 2.5],
    },
    "nemotron_h": MAMBA,
    "granitemoehybrid": GRANITE_4,
    "bamba": {key: GRANITE_4[key] for key in GRANITE_4 if key.startswith(("mamba_", "time_"))}
    | MLP_BIAS
    | {
        "attn_layer_indices": [[1], [0, 2], "-"],
        "mamba_d_head": ["-", "auto"],
        "partial_rotary_factor": ["-", "-", 0.25],
    },
    "qwen3_next": DELTA_EXPERTS
    | {
        "norm_topk_prob": [True, False, "-"],
        "decoder_sparse_step": [1, 2, "-"],
        "mlp_only_layers": [[], [1], [0, 2], "-"],
    },
    "qwen3_5_text": DELTA,
    "qwen3_5_moe_text": DELTA_EXPERTS,
    "mixtral": WINDOW | {"num_local_experts": [4, 6], "num_experts_per_tok": [1, 2]},
    "qwen2_moe": CHOSEN
    | SHARED
    | STEPS
    | {
        "qkv_bias": [True, False],
        "use_sliding_window": [True, False],
        "sliding_window": [5],
        "max_window_layers": [1, 3],
    },
    "olmoe": CHOSEN | {"head_dim": ["-"], "clip_qkv": [None, None, 5.0]},
    "glm4_moe": ROUTED | ROTATED | {"first_k_dense_replace": [0, 1], "use_qk_norm": [True, False]},
    "dots1": ROUTED
    | WINDOW
    | {"first_k_dense_replace": [0, 1], "max_window_layers": [1, 2], "layer_types": [MIXED, "-"]},
    "solar_open": ROUTED,
    "exaone_moe": GROUPED
    | SPARSE
    | WINDOW
    | {
        "num_experts": [8],
        "num_shared_experts": [1, 2],
        "first_k_dense_replace": [0, 1],
        "sliding_window_pattern": [2, 3],
        "layer_types": [MIXED, ["full_attention"] * 3, "-"],
    },
    "ernie4_5_moe": {
        "moe_num_experts": [6],
        "moe_k": [1, 2, 3],
        "moe_num_shared_experts": [0, 1, 2],
        "moe_intermediate_size": [24],
        "moe_layer_start_index": [0, 1],
        "moe_layer_end_index": [-1, 1],
        "moe_layer_interval": [1, 1, 2],
        "moe_norm_min": [1e-12, 1e-12, 0.5],
        "use_bias": [False, False, True],
    },
    "minimax_m2": {
        "num_local_experts": [6],
        "num_experts_per_tok": [1, 2, 3],
        "rotary_dim": [4, 8, "-"],
        "head_dim": [8, 16],
    },
    "hy_v3": CHOSEN
    | SPARSE
    | MLP_BIAS
    | {"num_shared_experts": [1, 2], "router_scaling_factor": [1.0, 2.5], "head_dim": [8, 16]},
    "flint": CHOSEN
    | SHARED
    | STEPS
    | {"sliding_window": [5, 9], "layer_types": [MIXED, ["full_attention"] * 3]},
    "hunyuan_v1_dense": HUNYUAN,
    "hunyuan_v1_moe": HUNYUAN | {"num_experts": [6], "moe_topk": [1, 3, [2, 2, 2], [1, 2, 1]]},
    "llama4_text": {
        "num_hidden_layers": [4],
        "intermediate_size": [24],
        "intermediate_size_mlp": [40],
        "num_local_experts": [4, 6],
        "num_experts_per_tok": [1, 1, 2],
        "interleave_moe_layer_step": [1, 2, "-"],
        "moe_layers": ["-", "-", [0], [1, 9]],
        "no_rope_layers": ["-", [], [0, 1, 1, 0], [1] * 4],
        "no_rope_layer_interval": [2, 4],
        "layer_types": ["-", "-", ["full_attention", "chunked_attention"] * 2],
        "attention_chunk_size": [5, 9, 64, "-"],
        "use_qk_norm": [True, True, False],
        "attn_temperature_tuning": [True, True, False],
        "floor_scale": [3, 7, 8192],
        "attn_scale": [0.1, 0.7],
    },
    "granitemoe": FACTORS | {"num_local_experts": [6], "num_experts_per_tok": [1, 2, 3]},
    "llama": MLP_BIAS,
    "internlm3": MLP_BIAS | {"attention_bias": [True], "mlp_bias": [True]},
    "iquestcoder": MLP_BIAS,
    "seed_oss": MLP_BIAS | {"attention_out_bias": [True, False]},
    "ernie4_5": {"use_bias": [True, False]},
    "helium": MLP_BIAS | {"head_dim": [8], "hidden_size": [32], "num_attention_heads": [4]},
    "granite": MLP_BIAS | FACTORS,
    "hyperclovax": MLP_BIAS | FACTORS | {"use_post_norm": [True, False]},
    "olmo2": {},
    "glm": {"partial_rotary_factor": [0.5, 1.0, 0.25, "-"], "head_dim": [16]},
    "glm4": {"partial_rotary_factor": [0.5, 1.0, 0.25, "-"], "head_dim": [16]},
    "arcee": MLP_BIAS | {"hidden_act": ["relu2", "relu2", "silu"]},
    "apertus": MLP_BIAS | {"hidden_act": ["xielu", "-", "relu2"]},
    "ministral": WINDOW
    | {
        "head_dim": [8, 16],
        "sliding_window": [5, 9],
        "layer_types": [MIXED, ["full_attention"] * 3, "-"],
    },
    "mistral": WINDOW,
    "cohere": {"layer_norm_eps": [1e-5, 1e-2], "logit_scale": [0.0625, 2.0]},
    "cohere2": {
        "layer_norm_eps": [1e-5, 1e-2],
        "logit_scale": [0.0625, 2],
        "sliding_window": [5],
        "layer_types": [MIXED, ["full_attention"] * 3, "-"],
        "head_dim": [8, "-"],
    },
    "qwen2": {"use_sliding_window": [True, False], "sliding_window": [5], "max_window_layers": [1]},
    "qwen3": {"use_sliding_window": [True, False], "sliding_window": [5], "max_window_layers": [1]},
    "deepseek_v3": LATENT
    | EXPERTS
    | {"rope_interleave": [True, False], "first_k_dense_replace": [0, 1, 2]},
    "deepseek_v2": LATENT
    | EXPERTS
    | {
        "first_k_dense_replace": [0, 1, 2],
        "topk_method": ["greedy", "group_limited_greedy"],
        "norm_topk_prob": [False],
    },
    "mistral4": LATENT
    | EXPERTS
    | {
        "first_k_dense_replace": [0, 1, 2],
        "rope_parameters": [
            GROWING,
            GROWING | {"llama_4_scaling_beta": 0.0},
            GROWING | {"mscale": 1.0, "mscale_all_dim": 1.0, "max_position_embeddings": 64},
            GROWING | {"mscale_all_dim": 0.8},
            {"rope_type": "default", "rope_theta": 77.0, "llama_4_scaling_beta": 0.2},
        ],
    },
    "glm4_moe_lite": LATENT
    | EXPERTS
    | {"mlp_layer_types": [["sparse"] * 3, ["dense", "sparse", "dense"], "-"]},
    "youtu": LATENT | {"rope_interleave": [True, False]},
    "minicpm3": LATENT
    | MLP_BIAS
    | {
        "v_head_dim": [6, 8, None],
        "scale_emb": [1, 3.5],
        "scale_depth": [1.4, 0.7, None],
        "dim_model_base": [8, 20, None],
    },
    "smollm3": MLP_BIAS
    | {
        "no_rope_layer_interval": [2, 3],
        "use_sliding_window": [True, False],
        "sliding_window": [5],
    },
}


def drawn(family: str, number: int) -> dict:
    """Returns the keys of one configuration."""
    random = np.random.default_rng(zlib.crc32(f"{family} {number}".encode()))
    choices = SHAPES | FAMILIES[family]
    keys = {key: values[random.integers(len(values))] for key, values in choices.items()}
    # transformers adds to the rope section.
    keys = {key: deepcopy(value) for key, value in keys.items() if value != "-"}
    for name in ("layer_types", "mlp_layer_types"):
        if isinstance(keys.get(name), list):
            keys[name] = keys[name][: keys["num_hidden_layers"]]
    return {"model_type": family} | keys


def of_transformers(keys: dict, folder) -> np.ndarray:
    """Writes a model with random weights to a folder, and returns its logits in float64."""
    import torch
    import transformers

    register_models()
    config = transformers.AutoConfig.for_model(**keys)
    torch.manual_seed(0)
    options = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, **options)
    with torch.no_grad():
        corrections = (x for name, x in model.named_buffers() if re.search(CONSTANT, name))
        for x in (*model.parameters(), *corrections):
            x.add_(torch.randn(x.shape) * (0.3 if x.ndim == 1 else 0.2))
        model.save_pretrained(folder)
        tokens = torch.from_numpy(TOKENS)[None]
        with in_float64():
            return model.eval().double()(tokens, use_cache=False).logits[0].numpy()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_configuration_gives_the_logits_of_transformers_or_one_sentence(family, tmp_path):
    equal, refused, wrong = 0, [], []
    for number in range(COUNT):
        keys, folder = drawn(family, number), tmp_path / str(number)
        try:
            theirs = of_transformers(keys, folder)
        except Exception as error:  # noqa: BLE001 - transformers has no such model
            print(f"{family} {number}: transformers: {type(error).__name__}: {error}")
            continue
        try:
            decoder = Decoder(config=read_config(folder))
            params = read_params(folder, decoder, "float32")
        except InputError as error:
            refused.append(str(error).replace(str(folder), ""))
            continue
        ours = forward.logits(decoder, params, *forward.rows([TOKENS], 40))[0]
        far = np.abs(ours - theirs).max() / np.abs(theirs).max()
        if np.std(theirs) > 0.01 and far <= (READS if decoder.config.delta else LIMIT):
            equal += 1
        else:
            wrong.append(f"{number}: {far:.1e} of the largest: {keys}")
    print(f"{family}: {equal} equal, {len(refused)} refused: {sorted(set(refused))}")
    assert not wrong, "\n".join(wrong)
    assert equal
