"""Compares the text models of models of several modalities with transformers, and their exports."""

import json
import re

import jax
import numpy as np
import pytest

from rl4p.distributed.mesh import Mesh
from rl4p.model.huggingface import write_policy
from rl4p.model.lora import LoRA
from rl4p.model.pretrained import Pretrained
from rl4p.model.tensor_files import read_header
from rl4p.model.tokenizer import byte_tokenizer
from tests.golden import forward

pytestmark = pytest.mark.parity
TOKENS = np.random.default_rng(1).integers(4, 264, 40)
TEXT = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "sliding_window": 9,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
TOWER = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
QWEN = TOWER | {"depth": 1, "num_heads": 2, "out_hidden_size": 32, "num_position_embeddings": 16}
DELTA = TEXT | {
    "num_hidden_layers": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 500.0,
        "partial_rotary_factor": 0.5,
        "mrope_section": [1, 1, 0],
        "mrope_interleaved": True,
    },
}
CASES = {
    "gemma3": {
        "model_type": "gemma3",
        "text_config": TEXT | {"model_type": "gemma3_text", "sliding_window_pattern": 3},
        "vision_config": TOWER | {"model_type": "siglip_vision_model"},
        "mm_tokens_per_image": 4,
    },
    "mistral3": {
        "model_type": "mistral3",
        "text_config": TEXT | {"model_type": "mistral", "tie_word_embeddings": True},
        "vision_config": TOWER | {"model_type": "pixtral", "head_dim": 8},
        "tie_word_embeddings": False,
    },
    "gemma4": {
        "model_type": "gemma4",
        "text_config": TEXT
        | {
            "model_type": "gemma4_text",
            "global_head_dim": 16,
            "hidden_size_per_layer_input": 12,
            "vocab_size_per_layer_input": 300,
            "num_kv_shared_layers": 1,
            "layer_types": ["sliding_attention", "full_attention", "full_attention"],
        },
        "vision_config": TOWER
        | {"model_type": "gemma4_vision", "head_dim": 8, "num_key_value_heads": 2},
        "audio_config": None,
    },
    "mistral3_tied": {
        "model_type": "mistral3",
        "text_config": TEXT | {"model_type": "mistral", "sliding_window": None},
        "vision_config": TOWER | {"model_type": "pixtral", "head_dim": 8},
        "tie_word_embeddings": True,
    },
    "llama4": {
        "model_type": "llama4",
        "text_config": TEXT
        | {
            "model_type": "llama4_text",
            "intermediate_size": 24,
            "intermediate_size_mlp": 48,
            "num_local_experts": 4,
            "interleave_moe_layer_step": 2,
            "no_rope_layer_interval": 3,
            "attention_chunk_size": 9,
            "floor_scale": 5,
        },
        "vision_config": TOWER
        | {
            "model_type": "llama4_vision_model",
            "intermediate_size": 64,
            "vision_output_dim": 16,
            "projector_input_dim": 16,
            "projector_output_dim": 16,
        },
    },
    "qwen3_5": {
        "model_type": "qwen3_5",
        "text_config": DELTA | {"model_type": "qwen3_5_text"},
        "vision_config": QWEN | {"model_type": "qwen3_5_vision"},
        "tie_word_embeddings": False,
    },
    "qwen3_5_moe": {
        "model_type": "qwen3_5_moe",
        "text_config": DELTA
        | {
            "model_type": "qwen3_5_moe_text",
            "moe_intermediate_size": 24,
            "num_experts": 6,
            "num_experts_per_tok": 2,
            "shared_expert_intermediate_size": 20,
        },
        "vision_config": QWEN | {"model_type": "qwen3_5_moe_vision"},
        "tie_word_embeddings": True,
    },
}


@pytest.fixture(scope="module", params=CASES)
def wrapper(request, tmp_path_factory):
    """Returns a model of transformers, and the folder that it wrote, with a tokenizer."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(**CASES[request.param])
    torch.manual_seed(0)
    model = transformers.AutoModelForImageTextToText.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text('{"size": 28}')
    return model.eval(), folder


def theirs(model):
    import torch

    with torch.no_grad():
        return model(torch.from_numpy(TOKENS)[None]).logits[0].numpy()


def ours(policy, params):
    row = forward.rows([TOKENS], 40)
    return np.asarray(forward.logits(policy.decoder, policy.merged(params), *row))[0]


def opened(folder):
    import transformers

    model, info = transformers.AutoModelForImageTextToText.from_pretrained(
        folder, attn_implementation="eager", output_loading_info=True
    )
    assert not any(info.values()), info
    return model.eval()


def changed(params):
    random = np.random.default_rng(0)
    return jax.tree.map(lambda x: x * np.float32(1 + 0.3 * random.standard_normal(x.shape)), params)


def test_logits_and_an_export_with_all_other_tensors(wrapper, tmp_path, caplog):
    import torch

    model, folder = wrapper
    policy, params = Pretrained(path=str(folder)).build(Mesh(dp=1), jax.random.key(0))
    assert "has tensors that are not of its text model: " in caplog.text
    assert any(f"{name} (" in caplog.text for name in ("vision_tower", "visual", "vision_model"))
    np.testing.assert_allclose(ours(policy, params), theirs(model), atol=1e-4)

    params = changed(params)
    out = tmp_path / "out"
    write_policy(out, policy, params, shard_bytes=20_000)
    again = opened(out)
    assert type(again) is type(model)
    np.testing.assert_allclose(ours(policy, params), theirs(again), atol=1e-4)
    before, after = dict(model.named_parameters()), dict(again.named_parameters())
    for name, parameter in before.items():
        text = "language_model" in name or "lm_head" in name
        assert torch.equal(parameter, after[name]) is not text, name
    configs = [json.loads((x / "config.json").read_text()) for x in (folder, out)]
    for key in configs[0].keys() - {"text_config", "transformers_version"}:
        assert configs[0][key] == configs[1][key], key
    assert (out / "preprocessor_config.json").read_text() == '{"size": 28}'
    whole, read = Pretrained(path=str(out)).build(Mesh(dp=1), jax.random.key(0))
    assert whole.decoder.config == policy.decoder.config
    jax.tree.map(np.testing.assert_array_equal, read, params)


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # from PEFT itself
def test_peft_finds_the_modules_of_an_adapter(wrapper, tmp_path):
    peft = pytest.importorskip("peft")
    _, folder = wrapper
    model = Pretrained(path=str(folder), lora=LoRA(rank=2, targets="q_proj|up_proj"))
    policy, params = model.build(Mesh(dp=1), jax.random.key(0))
    params = jax.tree.map(lambda x: x + 0.1, params)
    write_policy(tmp_path / "adapter", policy, params, adapter=True)
    adapted = peft.PeftModel.from_pretrained(opened(folder), tmp_path / "adapter")
    modules = [name for name, x in adapted.named_modules() if hasattr(x, "lora_A")]
    stored = read_header(tmp_path / "adapter" / "adapter_model.safetensors")
    assert 2 * len(modules) == len(stored) > 8
    assert all(re.search(r"language_model\.(model\.)?layers\.", name) for name in modules)
    np.testing.assert_allclose(ours(policy, params), theirs(adapted), atol=1e-4)
    merged = Pretrained(path=str(tmp_path / "adapter")).build(Mesh(dp=1), jax.random.key(0))
    np.testing.assert_allclose(ours(*merged), theirs(adapted), atol=1e-4)
