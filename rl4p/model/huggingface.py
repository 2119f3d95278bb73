"""Hugging Face folders in and out: config.json and safetensors to parameters and back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.flax import save_file

from rl4p.errors import InputError
from rl4p.model.decoder import Decoder, DecoderConfig
from rl4p.types import Params

ARCHITECTURES = ("qwen2",)

# Where a parameter of one layer stands in the files of the Qwen2 family. Kernels are [in, out] here
# and [out, in] there.
LAYER_NAMES = {
    ("attention_norm", "scale"): "input_layernorm.weight",
    ("feed_forward_norm", "scale"): "post_attention_layernorm.weight",
    ("query", "kernel"): "self_attn.q_proj.weight",
    ("query", "bias"): "self_attn.q_proj.bias",
    ("key", "kernel"): "self_attn.k_proj.weight",
    ("key", "bias"): "self_attn.k_proj.bias",
    ("value", "kernel"): "self_attn.v_proj.weight",
    ("value", "bias"): "self_attn.v_proj.bias",
    ("output", "kernel"): "self_attn.o_proj.weight",
    ("gate", "kernel"): "mlp.gate_proj.weight",
    ("up", "kernel"): "mlp.up_proj.weight",
    ("down", "kernel"): "mlp.down_proj.weight",
}
TOP_NAMES = {
    ("embedding",): "model.embed_tokens.weight",
    ("norm", "scale"): "model.norm.weight",
    ("head",): "lm_head.weight",
}


def read_config(folder: Path) -> DecoderConfig:
    """The shape that config.json describes.

    Raises:
      InputError: no config.json, a key is missing, or it asks for what the decoder does not do.
    """
    if not (folder / "config.json").is_file():
        raise InputError(f"model.path={folder} has no config.json.")
    config = read_json(folder / "config.json")
    if config.get("model_type") not in ARCHITECTURES:
        raise InputError(
            f"{folder / 'config.json'}: model_type {config.get('model_type')!r} is not known; "
            f"known are {', '.join(ARCHITECTURES)}."
        )
    # transformers 5 writes rope_parameters, earlier versions rope_theta and rope_scaling.
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    for found, what in (
        (rope_type != "default", f"rope type {rope_type!r}"),
        (config.get("use_sliding_window"), "a sliding window"),
        (config.get("hidden_act", "silu") != "silu", f"activation {config.get('hidden_act')!r}"),
    ):
        if found:
            raise InputError(f"{folder / 'config.json'} asks for {what}, which is not supported.")
    try:
        heads, width = config["num_attention_heads"], config["hidden_size"]
        return DecoderConfig(
            vocabulary=config["vocab_size"],
            width=width,
            layers=config["num_hidden_layers"],
            heads=heads,
            key_value_heads=config.get("num_key_value_heads") or heads,
            head_width=config.get("head_dim") or width // heads,
            feed_forward_width=config["intermediate_size"],
            max_positions=config["max_position_embeddings"],
            rope_theta=float(rope.get("rope_theta") or config.get("rope_theta") or 10_000.0),
            norm_epsilon=config["rms_norm_eps"],
            tied_embedding=config.get("tie_word_embeddings", False),
        )
    except KeyError as error:
        raise InputError(f"{folder / 'config.json'} has no {error.args[0]!r}.") from None


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is no JSON object.")
    return content


def parameter_names(config: DecoderConfig) -> Iterator[tuple[tuple[str, ...], int | None, str]]:
    """Every tensor of a checkpoint: path in the parameters, layer or None, name in the files."""
    for path, name in TOP_NAMES.items():
        if path != ("head",) or not config.tied_embedding:
            yield path, None, name
    for path, name in LAYER_NAMES.items():
        if path[-1] != "bias" or config.attention_bias:
            for layer in range(config.layers):
                yield ("layers", *path), layer, f"model.layers.{layer}.{name}"


def read_params(folder: Path, decoder: Decoder, dtype: str) -> Params:
    """The parameters of a folder's safetensors, in the decoder's stacked form, as host arrays.

    Raises:
      InputError: files are missing or broken; or tensors are missing, extra or of another shape
        (all of them are named).
    """
    files = tensor_files(folder)
    shapes = jax.eval_shape(decoder.init, jax.random.key(0))
    expected = list(parameter_names(decoder.config))
    problems = [f"{name} is missing" for _, _, name in expected if name not in files]
    known = {name for _, _, name in expected} | {"lm_head.weight"}  # some repeat the tied head
    problems += [f"{name} is not part of this model" for name in files if name not in known]
    params: dict = {}
    for path, layer, name in expected:
        if name not in files:
            continue
        try:
            with open_tensors(files[name]) as tensors:
                array = np.asarray(tensors.get_tensor(name))
        except SafetensorError:
            problems.append(f"{name} is missing from {files[name].name}")
            continue
        shape = leaf(shapes, path).shape if layer is None else leaf(shapes, path).shape[1:]
        expected_shape = shape[::-1] if path[-1] == "kernel" else shape  # as it is in the files
        if array.shape != expected_shape:
            problems.append(f"{name} should be {expected_shape}, is {array.shape}")
            continue
        array = array.T if path[-1] == "kernel" else array
        node = params
        for key in path[:-1]:
            node = node.setdefault(key, {})
        if layer is None:
            node[path[-1]] = array.astype(dtype)
        else:
            whole = node.setdefault(
                path[-1], np.zeros((decoder.config.layers, *shape), jnp.dtype(dtype))
            )
            whole[layer] = array
    if problems:
        raise InputError(f"The weights in {folder} do not fit: {'; '.join(problems)}.")
    return params


def tensor_files(folder: Path) -> dict[str, Path]:
    """Which file holds each tensor."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict):
            raise InputError(f"{index} has no 'weight_map'.")
        files = {name: folder / file for name, file in weight_map.items()}
        absent = sorted({path.name for path in files.values() if not path.is_file()})
        if absent:
            raise InputError(f"{index} names files that are not there: {', '.join(absent)}.")
        return files
    if not single.is_file():
        raise InputError(f"{folder} has no model.safetensors and no model.safetensors.index.json.")
    with open_tensors(single) as tensors:
        return dict.fromkeys(tensors.keys(), single)


def open_tensors(path: Path) -> Any:
    try:
        return safe_open(path, framework="flax")
    except SafetensorError as error:
        raise InputError(f"{path} is not a whole safetensors file: {error}.") from None


def leaf(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree[key]
    return tree


def write_model(folder: Path, decoder: Decoder, params: Params, end_ids: tuple[int, ...]) -> None:
    """Writes config.json, generation_config.json and model.safetensors in the parameters' dtype."""
    c = decoder.config
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for path, layer, name in parameter_names(c):
        array = leaf(params, path) if layer is None else leaf(params, path)[layer]
        tensors[name] = jnp.array(array.T if path[-1] == "kernel" else array)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # the library makes it private
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": c.vocabulary,
        "hidden_size": c.width,
        "intermediate_size": c.feed_forward_width,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.key_value_heads,
        "head_dim": c.head_width,
        "max_position_embeddings": c.max_positions,
        "rope_theta": c.rope_theta,
        "rms_norm_eps": c.norm_epsilon,
        "hidden_act": "silu",
        "tie_word_embeddings": c.tied_embedding,
        "eos_token_id": end_ids[0],
        "dtype": str(tensors["model.norm.weight"].dtype),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"eos_token_id": list(end_ids), "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
