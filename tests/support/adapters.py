"""Adapters of the policy that comes with the package, in the format of PEFT."""

import json

import jax
from safetensors.numpy import load_file, save_file

from rl4p.distributed.mesh import Mesh
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import read_config, read_params
from rl4p.model.lora import LoRA
from rl4p.model.model_files import model_files
from rl4p.model.pretrained import Pretrained

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
OWN = LoRA(rank=2, alpha=6.0, targets="query|up")


def build(path, mesh=None, **options):
    mesh = mesh or Mesh(dp=1)
    return Pretrained(path=str(path), **options).build(mesh, jax.random.key(0))


def read(path):
    """Reads the merged parameters without a tokenizer."""
    files = model_files(str(path))
    decoder = Decoder(config=read_config(files.weights))
    return read_params(files.weights, decoder, "float32", adapter=files.adapter)


def moved(adapters):
    key = jax.random.key(1)
    return jax.tree.map(lambda x: x + 0.1 * jax.random.normal(key, x.shape), adapters)


def edit(folder, **keys):
    path = folder / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def edit_tensors(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
