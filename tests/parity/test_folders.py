"""Compares folders that transformers wrote and others changed: the same logits, or one sentence.

The folders are those of this environment's transformers, or all options of all families by another:
RL4P_TRANSFORMERS_4 names a Python that has it (`make parity-4`).
"""

import json
import os
import subprocess

import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import read_config, read_params
from tests.golden import forward
from tests.golden.cases import CASES

pytestmark = pytest.mark.parity
folders = pytest.importorskip("tests.support.exported_folders")
OTHER = os.environ.get("RL4P_TRANSFORMERS_4")
FAMILIES = (
    *("qwen2", "qwen3", "llama", "mistral", "gemma2", "gemma3", "qwen3_moe", "smollm3", "olmo3"),
    *("gpt_oss", "phi3", "glm4"),
)
if not OTHER:
    FAMILIES += (
        *("glm", "seed_oss", "ernie4_5", "granite", "hyperclovax", "olmo2", "arcee", "helium"),
        *("ministral", "internlm3", "cohere2"),
        *("mixtral", "qwen2_moe", "olmoe", "glm4_moe", "dots1", "solar_open", "exaone_moe"),
        *("ernie4_5_moe", "minimax_m2", "hy_v3", "flint", "granitemoe"),
    )
ROTATED_IN_PART = {  # which they may be
    (family, "partial_rotary") for family in ("phi3", "glm", "glm4", "glm4_moe", "minimax_m2")
}
SOME = ("plain", "sharded", "two_ropes", "base_only", "same_head", "other_head")


def logits_of(folder):
    decoder = Decoder(config=read_config(folder))
    params = read_params(folder, decoder, "float32")
    return np.asarray(forward.logits(decoder, params, *forward.rows([folders.TOKENS], 40)))[0]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folders of the other transformers; None if there is none."""
    if not OTHER:
        return None
    out = tmp_path_factory.mktemp("folders")
    cases = out / "cases.json"
    cases.write_text(json.dumps({family: CASES[family] for family in FAMILIES}))
    done = subprocess.run(
        [OTHER, "-P", folders.__file__, out, cases], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return out


@pytest.mark.parametrize(
    ("family", "option"),
    [
        (family, option)
        for family in FAMILIES
        for option in (folders.OPTIONS if OTHER or family == "llama" else SOME)
        if (family, option) not in ROTATED_IN_PART
    ],
)
def test_a_folder_gives_the_logits_of_transformers_or_one_sentence(made, family, option, tmp_path):
    if made is None:
        folder = folders.make(tmp_path, family, CASES[family], option)
    else:
        folder = made / f"{family}-{option}"
    sentence = folders.OPTIONS[option][1]
    if sentence is not None:
        with pytest.raises(InputError, match=sentence) as error:
            logits_of(folder)
        assert len(str(error.value)) < 400 + 3 * len(str(folder))
        return
    theirs = np.load(f"{folder}.npy")
    assert np.std(theirs) > 0.03
    np.testing.assert_allclose(logits_of(folder), theirs, atol=1e-4)


KEYS = {
    "attention_bias": [True, False, None],
    "mlp_bias": [True, False],
    "head_dim": [16, 8, None],
    "num_key_value_heads": [1, 4, None],
    "hidden_act": ["gelu", "silu"],
    "hidden_activation": ["silu", "gelu_pytorch_tanh"],
    "use_sliding_window": [True, False],
    "sliding_window": [5, None],
    "layer_types": [
        ["sliding_attention", "full_attention", "full_attention"],
        ["full_attention"] * 3,
        ["chunked_attention"] * 3,
        None,
    ],
    "max_window_layers": [0, 2],
    "sliding_window_pattern": [2, 3],
    "rope_theta": [77, 1e6],
    "rope_local_base_freq": [99.0],
    "rope_scaling": [
        {"type": "linear", "factor": 2.0},
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 99.0},
        {"rope_type": "default", "factor": 3.0},
        {"rope_type": "dynamic", "factor": 2.0},
        {"rope_type": "yarn", "factor": 2.0},
        None,
    ],
    "rope_parameters": [
        {"rope_type": "default", "rope_theta": 99.0},
        {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0},
        {"full_attention": {"rope_type": "default", "rope_theta": 500.0}},
    ],
    "partial_rotary_factor": [0.5, 1.0],
    "no_rope_layers": [[0, 1, 1], [1, 1, 1, 0]],
    "no_rope_layer_interval": [2],
    "attention_chunk_size": [5, None],
    "attn_temperature_tuning": [True, False],
    "floor_scale": [3],
    "moe_layers": [[1], [1, 3, 9]],
    "swiglu_limit": [7.0, 1.0],
    "experts_per_token": [1],
    "initial_context_length": [64, 32],
    "original_max_position_embeddings": [16],
    "attn_logit_softcapping": [5.0, None],
    "final_logit_softcapping": [3.0, None],
    "query_pre_attn_scalar": [7],
    "use_bidirectional_attention": [True, False],
    "rms_norm_eps": [1e-2],
    "norm_topk_prob": [True, False],
    "num_experts_per_tok": [1],
    "decoder_sparse_step": [2],
    "first_k_dense_replace": [1, 2],
    "mlp_layer_types": [["dense", "sparse", "sparse"], ["dense", "sparse"]],
    "n_group": [1, 2, 8],
    "topk_group": [1, 3],
    "routed_scaling_factor": [1.0, 3.0],
    "use_qk_norm": [True, False],
    "rotary_dim": [2, 8],
    "moe_k": [1],
    "moe_norm_min": [1e-12, 0.5],
    "num_nextn_predict_layers": [1],
    "mlp_only_layers": [[1]],
    "per_layer_config": [{"1": {"rms_norm_eps": 0.1}}],
    "attention_dropout": [0.5],
    "pretraining_tp": [2],
    "vocab_size": [60, 70],
    "num_hidden_layers": [2, 4],
    "tie_word_embeddings": [True, False],
    "logits_scaling": [3.0],
}


@pytest.mark.parametrize("family", [*FAMILIES, "lfm2", "nemotron_h", "granite_hybrid", "llama4"])
def test_every_key_does_what_transformers_does_with_it_or_is_refused(family, tmp_path, caplog):
    """Changes one key of config.json after the weights were written, and loads both."""
    import torch
    import transformers

    folder = folders.make(tmp_path, family, CASES[family], "plain")
    file, tokens = folder / "config.json", torch.from_numpy(folders.TOKENS)[None]
    original = json.loads(file.read_text())
    same, refused, wrong = 0, 0, []
    for key, values in KEYS.items():
        for value in values:
            file.write_text(json.dumps(original | {key: value}))
            try:
                ours = logits_of(folder)
            except InputError:
                refused += 1
                continue
            try:
                model, info = transformers.AutoModelForCausalLM.from_pretrained(
                    folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=1
                )
                with torch.no_grad():
                    theirs = model.eval()(tokens).logits[0].numpy()
            except Exception as error:  # noqa: BLE001 - transformers cannot load it: there is no reference
                print(f"{family}: {key}={value}: transformers: {type(error).__name__}: {error}")
                continue
            equal = ours.shape == theirs.shape and np.allclose(ours, theirs, atol=1e-4)
            same += equal
            wrong += [] if equal else [f"{key}={value} (loading: {info})"]
    assert not wrong, "\n".join(wrong)
    assert same > 15
    assert refused > 10
    assert "'logits_scaling'" in caplog.text or "logits_scaling" in original
