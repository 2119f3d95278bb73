"""Tests that adapters which PEFT saved give PEFT's logits here, or are refused in a sentence."""

import jax
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.distributed.mesh import Mesh
from rl4p.model.adapter import read_adapter
from rl4p.model.adapter_start import begin
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import read_config, read_params
from rl4p.model.lora import LoRA, merge_trees
from tests.golden import forward
from tests.support.random_models import random_model

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning"),  # from PEFT
    pytest.mark.filterwarnings("ignore::UserWarning:peft"),
    pytest.mark.filterwarnings("ignore:The following .*_pattern keys:RuntimeWarning"),
]
MERGED = LoRA()
TOKENS = np.random.default_rng(0).integers(0, 64, (2, 30))
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]

ADAPTERS = {  # the options of PEFT, after the case of the base
    "plain": ("qwen2", {"target_modules": ["q_proj", "down_proj"], "r": 3, "lora_alpha": 7}),
    "linear": ("llama", {"target_modules": "all-linear", "r": 4}),
    "gemma": ("gemma3", {"target_modules": "all-linear", "r": 2, "use_rslora": True}),
    "rank_stable": ("llama", {"target_modules": ["v_proj"], "r": 3, "use_rslora": True}),
    "patterns": (
        "qwen3",
        {
            "target_modules": ["q_proj", "k_proj", "up_proj"],
            "rank_pattern": {r"layers\.[12]\.self_attn\.q_proj": 5, "k_proj": 2},
            "alpha_pattern": {r"^model.layers.0.mlp.up_proj": 3, "q_proj": 11, "proj": 1},
        },
    ),
    "some_layers": (
        "llama",
        {"target_modules": ["q_proj", "o_proj"], "layers_to_transform": [0, 2]},
    ),
    "excluded": (
        "qwen2",
        {"target_modules": "all-linear", "exclude_modules": r".*layers\.1.*|.*k_proj"},
    ),
    "scaled_bias": ("qwen2", {"target_modules": ["q_proj", "v_proj"], "lora_bias": True}),
    "own_biases": ("qwen2", {"target_modules": ["q_proj"], "bias": "lora_only"}),
    "all_biases": ("qwen2", {"target_modules": ["q_proj"], "bias": "all"}),
    "saved": (
        "llama",
        {
            "target_modules": ["q_proj"],
            "modules_to_save": ["lm_head", "embed_tokens", "input_layernorm"],
        },
    ),
    "head": ("llama", {"target_modules": ["q_proj", "lm_head", "embed_tokens"]}),
    "fused": ("phi3", {"target_modules": ["qkv_proj", "gate_up_proj", "down_proj"]}),
    "experts": (
        "qwen3_moe",
        {
            "target_modules": ["q_proj"],
            "target_parameters": EXPERTS,
            "rank_pattern": {"down_proj": 3},
            "alpha_pattern": {"gate_up_proj": 2},
        },
    ),
    "down": ("qwen3_moe", {"target_modules": [], "target_parameters": EXPERTS[1:]}),
    "router": ("qwen3_moe", {"target_modules": ["gate"]}),
    "renamed_experts": ("mixtral", {"target_modules": ["gate"], "target_parameters": EXPERTS}),
    "experts_of_granite": (
        "granitemoe",
        {
            "target_modules": ["q_proj"],
            "target_parameters": ["experts.gate_up_proj", "experts.down_proj"],
        },
    ),
    "fused_experts": (
        "gpt_oss",
        {"target_modules": ["q_proj", "o_proj"], "target_parameters": EXPERTS, "r": 2},
    ),
    "gaussian": ("llama", {"target_modules": ["q_proj"], "init_lora_weights": "gaussian"}),
    "orthogonal": ("llama", {"target_modules": ["q_proj"], "init_lora_weights": "orthogonal"}),
    "mica": ("llama", {"target_modules": ["q_proj"], "init_lora_weights": "mica"}),
}
REFUSED = {
    "dora": ("llama", {"use_dora": True}, "use_dora=True is not read: merge it into its base"),
    "pissa": ("llama", {"init_lora_weights": "pissa"}, "init_lora_weights='pissa' the matrices"),
    "olora": ("llama", {"init_lora_weights": "olora"}, "init_lora_weights='olora' the matrices"),
    "replicated": ("llama", {"layer_replication": [[0, 2], [1, 3]]}, "layer_replication=.* not"),
    "rows": ("llama", {"trainable_token_indices": [1, 2]}, "trainable_token_indices=.* not read"),
    "new_bias": ("llama", {"lora_bias": True}, "layers.0.self_attn.q_proj is no matrix of it"),
    "tied": ("gemma2", {"modules_to_save": ["lm_head"]}, "has one matrix for both"),
    "router": (
        "qwen3_moe",
        {"target_modules": ["gate"], "rank_pattern": {"gate": 3}},
        "of rank 8 for model.layers.0.mlp.gate, but|pattern for the router",
    ),
}


def saved(folder, case, options, *, merge=False):
    """Saves a random base and adapter, and returns the logits of PEFT, or saves its merge."""
    torch, peft = pytest.importorskip("torch"), pytest.importorskip("peft")
    random_model(case, "AutoModelForCausalLM").save_pretrained(folder / "base")
    model = random_model(case, "AutoModelForCausalLM")
    model.name_or_path = str(folder / "base")
    adapted = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **options)).eval()
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad or "lora_" in name:
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    adapted.save_pretrained(folder / "adapter")
    if merge:
        return adapted.merge_and_unload().save_pretrained(folder / "merged")
    with torch.no_grad():
        return adapted(torch.from_numpy(TOKENS)).logits.numpy()


def logits(folder, lora=MERGED):
    adapter = read_adapter(folder / "adapter")
    decoder = Decoder(config=read_config(folder / "base"), lora=lora)
    merged = None if lora.rank else adapter
    params = read_params(folder / "base", decoder, "float32", adapter=merged)
    if lora.rank:
        shapes = jax.eval_shape(lora.init, jax.random.key(0), params)
        params = merge_trees(params, begin(adapter, decoder, shapes, Mesh(dp=1)))
    return np.asarray(forward.logits(decoder, params, *forward.rows(TOKENS, 30)))


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_of_peft_is_merged(tmp_path, name):
    theirs = saved(tmp_path, *ADAPTERS[name])
    np.testing.assert_allclose(logits(tmp_path), theirs, atol=2e-5 * np.abs(theirs).max())
    decoder = Decoder(config=read_config(tmp_path / "base"))
    base = read_params(tmp_path / "base", decoder, "float32")
    rows = forward.rows(TOKENS, 30)
    assert np.abs(forward.logits(decoder, base, *rows) - theirs).max() > 0.01


MERGED_ALIKE = {
    "qwen3_5_moe": ["experts.gate_up_proj"],
    "deepseek_v3": EXPERTS,
    "granite_hybrid": [],
    "llama4": ["experts.gate_up_proj", "experts.down_proj"],
    "hy_v3": EXPERTS[1:],
}


@pytest.mark.parametrize("case", MERGED_ALIKE)
def test_it_is_merged_as_by_peft(tmp_path, case):
    """The parameters equal those of PEFT's own merge, in models of several kinds of layers."""
    options = {"target_modules": "all-linear", "target_parameters": MERGED_ALIKE[case] or None}
    saved(tmp_path, case, options, merge=True)
    decoder = Decoder(config=read_config(tmp_path / "base"))
    ours = read_params(
        tmp_path / "base", decoder, "float32", adapter=read_adapter(tmp_path / "adapter")
    )
    theirs, base = (read_params(tmp_path / name, decoder, "float32") for name in ("merged", "base"))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), ours, theirs)
    apart = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), base, theirs)
    assert sum(x > 1e-3 for x in jax.tree.leaves(apart)) >= 4


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_read_is_refused_in_a_sentence(tmp_path, name):
    case, options, words = REFUSED[name]
    saved(tmp_path, case, {"target_modules": ["q_proj"]} | options)
    with pytest.raises(InputError, match=words) as error:
        logits(tmp_path)
    assert "\n" not in str(error.value)


TRAINED_ON = {  # the options of PEFT, after the case of the base, and those of rl4p
    "plain": (
        "qwen2",
        {"target_modules": ["q_proj", "down_proj"], "r": 3, "lora_alpha": 7},
        LoRA(rank=3, alpha=7.0, targets="query|down"),
    ),
    "rank_stable": (
        "llama",
        {"target_modules": "all-linear", "r": 2, "use_rslora": True},
        LoRA(rank=2, alpha=8 * 2**0.5),
    ),
    "fused": (
        "phi3",
        {"target_modules": ["qkv_proj", "down_proj"], "r": 2},
        LoRA(rank=2, alpha=8.0, targets="query|key|value|down"),
    ),
    "experts_beside": (
        "qwen3_moe",
        {"target_modules": ["q_proj", "o_proj"], "r": 2},
        LoRA(rank=2, alpha=8.0, targets=("q_proj", "o_proj")),
    ),
}


@pytest.mark.parametrize("name", TRAINED_ON)
def test_an_adapter_of_peft_is_trained_on(tmp_path, name):
    """A run begins with the policy of PEFT, whose gradients are those of its matrices."""
    case, options, lora = TRAINED_ON[name]
    theirs = saved(tmp_path, case, options)
    np.testing.assert_allclose(logits(tmp_path, lora), theirs, atol=2e-5 * np.abs(theirs).max())
