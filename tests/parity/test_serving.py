"""Tests that a served model answers as transformers does on the same folder, also after a sync."""

import signal
import subprocess
import sys

import httpx2
import jax
import numpy as np
import pytest

from rl4p.distributed.mesh import Mesh
from rl4p.engine.remote.weights import WeightsFolder
from rl4p.model.pretrained import Pretrained
from rl4p.model.tokenizer import byte_tokenizer
from tests.support.random_models import random_model

pytestmark = pytest.mark.parity
FAMILIES = (
    *("qwen2", "qwen3", "llama", "gemma2", "gemma3", "mistral", "qwen3_moe", "smollm3", "olmo3"),
    *("gpt_oss", "phi3_window", "glm4", "llama4"),
)
TEXTS = ("7", "123+456=", "A longer prompt, which is longer than the window of any layer: ")
TOKENS = 40


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request, tmp_path_factory):
    """Returns the folder of a model of transformers, with the tokenizer of bytes."""
    model = random_model(request.param, "AutoModelForCausalLM", vocab_size=264)
    tokenizer = byte_tokenizer()
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    folder = tmp_path_factory.mktemp(request.param) / "model"
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def http(folder):
    """Returns a client of a process that serves the folder."""
    command = [sys.executable, "-m", "rl4p.serve", "port=0", "slots=4"]
    command += ["model=pretrained", f"model.path={folder}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        with httpx2.Client(base_url=url, timeout=120) as client:
            yield client
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def of_transformers(folder):
    """Returns the greedy tokens of transformers for each text, without the text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )
    found = []
    for text in TEXTS:
        ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
        options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": TOKENS}
        tokens = model.generate(ids, do_sample=False, **options)
        found.append(tokens[0, ids.shape[1] :].tolist())
    return found


def served(http):
    """Returns the greedy tokens of the server for each text."""
    body = {"prompt": list(TEXTS), "max_tokens": TOKENS, "temperature": 0, "return_token_ids": True}
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    return [choice["token_ids"] for choice in answer.json()["choices"]]


def test_greedy_answers_are_those_of_transformers_before_and_after_an_update(
    folder, http, tmp_path
):
    before = of_transformers(folder)
    assert len({tuple(tokens) for tokens in before}) == len(TEXTS)
    assert served(http) == before

    policy, params = Pretrained(path=str(folder)).build(Mesh(dp=1), jax.random.key(0))
    noise = np.random.default_rng(0)
    params = jax.tree.map(lambda x: x * np.float32(1 + noise.standard_normal(x.shape)), params)
    weights = WeightsFolder(tmp_path, shard_bytes=50_000)
    path = str(weights.write(policy, params, "1").path)
    body = {"model_path": path, "weight_version": "one"}
    answer = http.post("/update_weights_from_disk", json=body)
    assert answer.status_code == 200, answer.text
    after = of_transformers(path)
    assert all(a != b for a, b in zip(before, after, strict=True))
    assert served(http) == after
