#!/bin/sh
# PEFT 0.21.2 beside transformers 5.23.0 adapts only the routed experts of DeepSeek-V3, whatever regex names the others.
#
# target_modules=["gate_proj", "up_proj", "down_proj"], or a regex that matches those of the dense layers and of the
# shared experts alone, could be expected to adapt the modules with these names. Since transformers 5 keeps the routed
# experts in fused tensors, PEFT takes the names for these, and no other module is adapted. A folder of an adapter of
# shared experts, as it was written before, opens with a warning about missing keys, and the model answers like its base.
#
# Output seen:
#   peft 0.21.2, transformers 5.23.0
#   linear modules with these names: 9
#   list: modules adapted 0, target_parameters ['down_proj', 'gate_up_proj']
#   regex: modules adapted 0, target_parameters ['down_proj', 'gate_up_proj']
#   a folder with adapters of the 9 modules changes the logits by 0.0
#
# Seen on 2026-11-30 with Python 3.11. Ends with another exit code than 0 if the behaviour has changed.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet --disable-pip-version-check torch==2.13.0 transformers==5.23.0 peft==0.21.2
cd "$folder"
TRANSFORMERS_VERBOSITY=error "$folder/env/bin/python" -W ignore - <<'PYTHON'
import json
from importlib.metadata import version
from pathlib import Path

import peft
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, DeepseekV3Config

print(f"peft {version('peft')}, transformers {version('transformers')}")
config = DeepseekV3Config(
    vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=3,
    num_attention_heads=4, num_key_value_heads=4, n_routed_experts=4, num_experts_per_tok=2, n_group=1, topk_group=1,
    n_shared_experts=1, first_k_dense_replace=1, q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8,
    qk_nope_head_dim=8, v_head_dim=8,
)
torch.manual_seed(0)
AutoModelForCausalLM.from_config(config).save_pretrained("base")
names = ("gate_proj", "up_proj", "down_proj")


def fresh():
    return AutoModelForCausalLM.from_pretrained("base").eval()


def logits(model):
    with torch.no_grad():
        return model(torch.arange(20)[None]).logits


linear = {
    name: module
    for name, module in fresh().named_modules()
    if isinstance(module, torch.nn.Linear) and name.endswith(names)
}
print(f"linear modules with these names: {len(linear)}")
targets = {"list": [*names], "regex": r".*layers\.\d\.mlp\.(shared_experts\.)?(gate|up|down)_proj"}
counts = []
for kind, chosen in targets.items():
    adapted = peft.get_peft_model(fresh(), peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=chosen))
    own = [name for name, _ in adapted.named_parameters() if "lora_A" in name and ".experts." not in name]
    counts.append(len(own))
    print(f"{kind}: modules adapted {len(own)}, target_parameters {sorted(adapted.active_peft_config.target_parameters)}")

Path("adapter").mkdir()
options = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "base", "r": 2, "lora_alpha": 4}
Path("adapter/adapter_config.json").write_text(json.dumps(options | {"target_modules": [*names]}))
matrices = {}
for name, module in linear.items():
    matrices[f"base_model.model.{name}.lora_A.weight"] = torch.randn(2, module.in_features)
    matrices[f"base_model.model.{name}.lora_B.weight"] = torch.randn(module.out_features, 2)
save_file(matrices, "adapter/adapter_model.safetensors")
change = float((logits(peft.PeftModel.from_pretrained(fresh(), "adapter")) - logits(fresh())).abs().max())
print(f"a folder with adapters of the 9 modules changes the logits by {change}")
assert (len(linear), counts, change) == (9, [0, 0], 0.0)
PYTHON
