"""Makes model folders with transformers, of any version: `python folders.py OUT CASES.json`.

Each folder is one family with one option that changes its files. Beside it, NAME.npy has the
logits that the same transformers computes from the folder. It needs torch and transformers only.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

TOKENS = np.random.default_rng(1).integers(0, 64, 40)
SAFE, INDEX = "model.safetensors", "model.safetensors.index.json"


def random_model(options):
    """Returns a model in float32 with no parameter equal to 0 or 1."""
    config = transformers.AutoConfig.for_model(**options)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        corrections = [x for name, x in model.named_buffers() if "correction" in name]
        for parameter in (*model.parameters(), *corrections):
            parameter.add_(torch.randn(parameter.shape) * (0.3 if parameter.ndim == 1 else 0.1))
    return model.eval().float()


def edit(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def rename(folder, change):
    tensors = load_file(folder / SAFE)
    save_file({change(k): v for k, v in tensors.items()}, folder / SAFE, {"format": "pt"})


def sharded(folder, model):
    (folder / SAFE).unlink()
    model.save_pretrained(folder, max_shard_size="10KB")


def other_head(folder, model):
    tensors = load_file(folder / SAFE)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].roll(1, 0).contiguous()
    save_file(tensors, folder / SAFE, {"format": "pt"})


def same_head(folder, model):
    tensors = load_file(folder / SAFE)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / SAFE, {"format": "pt"})


def stale_index(folder, model):
    shard = "model-00001-of-00001.safetensors"
    tensors = {name: x * 0 for name, x in load_file(folder / SAFE).items()}
    save_file(tensors, folder / shard, {"format": "pt"})
    index = {"metadata": {}, "weight_map": dict.fromkeys(tensors, shard)}
    (folder / INDEX).write_text(json.dumps(index))


def adapter(folder, model):
    name = "base_model.model.model.layers.0.self_attn.o_proj.lora_"
    rows, columns = model.model.layers[0].self_attn.o_proj.weight.shape  # every family has it
    tensors = {name + "A.weight": torch.ones(2, columns), name + "B.weight": torch.ones(rows, 2)}
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["o_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))


def adapter_alone(folder, model):
    adapter(folder, model)
    for name in (SAFE, "config.json"):
        (folder / name).unlink()


def older_pickle(folder, model):
    torch.save({"model.norm.weight": torch.zeros(3)}, folder / "pytorch_model.bin")


def int8(folder, model):
    tensors = load_file(folder / SAFE)
    name = "model.layers.0.self_attn.o_proj.weight"
    tensors[name + "_scale"] = torch.ones(1)
    save_file(tensors, folder / SAFE, {"format": "pt"})


def two_ropes(folder, model):
    edit(
        folder / "config.json",
        rope_parameters={"rope_theta": 777.0, "rope_type": "default"},
        rope_scaling={"rope_theta": 777.0, "rope_type": "linear", "factor": 2.0},
    )


def one_part_less(folder, model):
    sharded(folder, model)
    min(folder.glob("model-*")).unlink()


# For each option: what it does to the folder of a plain model, and what rl4p has to say to it. None
# means the same logits.
PLAIN = {
    "plain": (lambda folder, model: None, None),
    "sharded": (sharded, None),
    "half": (lambda folder, model: model.bfloat16().save_pretrained(folder), None),
    "no_generation_config": (lambda f, m: (f / "generation_config.json").unlink(), None),
    "older_pickle": (older_pickle, None),
    "stale_index": (stale_index, "two sets of weights"),
    "adapter": (adapter, "has an adapter"),
    "adapter_alone": (adapter_alone, "has an adapter"),
    "compiled": (lambda f, m: rename(f, lambda k: "_orig_mod." + k), "other names"),
    "parallel": (lambda f, m: rename(f, lambda k: "module." + k), "other names"),
    "wrapped": (lambda f, m: rename(f, lambda k: "model." + k), "other names"),
    "base_only": (lambda f, m: rename(f, lambda k: k.removeprefix("model.")), "other names"),
    "scales": (int8, "quantized"),
    "quantization_config": (
        lambda f, m: edit(f / "config.json", quantization_config={"quant_method": "gptq"}),
        "quantized weights",
    ),
    "part_missing": (one_part_less, "names files that do not exist"),
    "unknown_key": (lambda f, m: edit(f / "config.json", logits_scaling=8.0), None),
    "two_ropes": (two_ropes, " differ, and versions of transformers|rope_parameters with"),
    "partial_rotary": (
        lambda f, m: edit(f / "config.json", partial_rotary_factor=0.5),
        "partial_rotary_factor",
    ),
}
TIED = {
    "same_head": (same_head, None),
    "other_head": (other_head, "has a lm_head.weight that differs"),
}
OPTIONS = PLAIN | TIED


def make(out, family, options, name):
    """Writes one folder, and the logits of transformers if it can load the folder."""
    folder = Path(out) / f"{family}-{name}"
    model = random_model(options | ({"tie_word_embeddings": True} if name in TIED else {}))
    model.save_pretrained(folder)
    OPTIONS[name][0](folder, model)
    if OPTIONS[name][1] is None:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        with torch.no_grad():
            logits = model.eval()(torch.from_numpy(TOKENS)[None]).logits[0]
        np.save(f"{folder}.npy", logits.numpy())
    return folder


if __name__ == "__main__":
    for family, options in json.loads(Path(sys.argv[2]).read_text()).items():
        for name in OPTIONS:
            print(make(sys.argv[1], family, options, name), flush=True)
