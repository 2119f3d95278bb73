"""Hugging Face folders in and out: config.json and safetensors to parameters and back."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.flax import save_file

from rl4p.errors import InputError
from rl4p.model.decoder import Decoder, DecoderConfig
from rl4p.model.families import FAMILIES, family_of
from rl4p.types import Params


def read_config(folder: Path) -> DecoderConfig:
    """The shape that config.json describes.

    Raises:
      InputError: no config.json, a key is missing, or it asks for what the decoder does not do.
    """
    if not (folder / "config.json").is_file():
        raise InputError(f"model.path={folder} has no config.json.")
    config, where = read_json(folder / "config.json"), str(folder / "config.json")
    return family_of(config, where).read_config(config, where)


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path} is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is no JSON object.")
    return content


def read_params(folder: Path, decoder: Decoder, dtype: str) -> Params:
    """The parameters of a folder's safetensors, in the decoder's stacked form, as host arrays.

    Raises:
      InputError: files are missing or broken; or tensors are missing, extra or of another shape
        (all of them are named).
    """
    files = tensor_files(folder)
    shapes = jax.eval_shape(decoder.init, jax.random.key(0))
    expected = list(FAMILIES[decoder.config.family].names(decoder.config))
    problems = [f"{name} is missing" for *_, name, _ in expected if name not in files]
    known = {name for *_, name, _ in expected} | {"lm_head.weight"}  # some repeat the tied head
    problems += [f"{name} is not part of this model" for name in files if name not in known]
    params: dict = {}
    for path, layer, expert, name, transposed in expected:
        if name not in files:
            continue
        try:
            with open_tensors(files[name]) as tensors:
                array = np.asarray(tensors.get_tensor(name))
        except SafetensorError:
            problems.append(f"{name} is missing from {files[name].name}")
            continue
        whole_shape = leaf(shapes, path).shape
        shape = whole_shape[(layer is not None) + (expert is not None) :]
        expected_shape = shape[::-1] if transposed else shape  # as it is in the files
        if array.shape != expected_shape:
            problems.append(f"{name} should be {expected_shape}, is {array.shape}")
            continue
        array = array.T if transposed else array
        node = params
        for key in path[:-1]:
            node = node.setdefault(key, {})
        if layer is None:
            node[path[-1]] = array.astype(dtype)
        else:
            whole = node.setdefault(path[-1], np.zeros(whole_shape, jnp.dtype(dtype)))
            whole[layer if expert is None else (layer, expert)] = array
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
    family = FAMILIES[c.family]
    for path, layer, expert, name, transposed in family.names(c):
        array = leaf(params, path) if layer is None else leaf(params, path)[layer]
        array = array if expert is None else array[expert]
        tensors[name] = jnp.array(array.T if transposed else array)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # the library makes it private
    config = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        **family.write_config(c),
        "eos_token_id": end_ids[0],
        "dtype": str(tensors["model.norm.weight"].dtype),
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {"eos_token_id": list(end_ids), "do_sample": True}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")
