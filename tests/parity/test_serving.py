"""Compares answers of the server with `generate` of transformers on the same folder."""

import json
import subprocess
import sys
from contextlib import contextmanager

import httpx2
import numpy as np
import pytest

from rl4p.model.tokenizer import byte_tokenizer
from tests.parity.models import random_model

pytestmark = pytest.mark.parity

FAMILIES = ("qwen2", "qwen3", "llama", "mistral", "gemma3")
PROMPTS = (1, 5, 17, 40)  # their lengths
COUNT = 24
VOCABULARY = 300


@contextmanager
def server(folder):
    words = ["model=pretrained", f"model.path={folder}", "name=served", "port=0"]
    process = subprocess.Popen(
        [sys.executable, "-m", "rl4p.serve", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        line = process.stdout.readline()
        assert "is served at http://" in line, line + process.stdout.read()
        yield line.split()[-1]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def greedy(model, tokens):
    """Returns the tokens that transformers chooses, and its lead over the second at each step."""
    import torch

    found = model.generate(
        torch.tensor([tokens]),
        attention_mask=torch.ones(1, len(tokens), dtype=torch.long),
        max_new_tokens=COUNT,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    best = torch.stack(found.logits)[:, 0].topk(2).values
    return found.sequences[0, len(tokens) :].tolist(), float((best[:, 0] - best[:, 1]).min())


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_are_those_of_transformers(family, tmp_path):
    model = random_model(family, "AutoModelForCausalLM", vocab_size=VOCABULARY)
    model.save_pretrained(tmp_path)
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    end = tokenizer.eos_token_id
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
    random = np.random.default_rng(3)
    with server(tmp_path) as address:
        compared = 0
        for length in PROMPTS:
            tokens = random.integers(0, VOCABULARY, length).tolist()
            wanted, lead = greedy(model, tokens)
            body = {"prompt": tokens, "max_tokens": COUNT, "temperature": 0}
            body |= {"ignore_eos": True, "return_token_ids": True, "model": "served"}
            answer = httpx2.post(f"{address}/v1/completions", json=body, timeout=300)
            assert answer.status_code == 200, answer.text
            assert lead > 1e-3, "Two tokens are almost equally probable: choose another seed."
            assert answer.json()["choices"][0]["token_ids"] == wanted
            compared += len(set(wanted))
    assert compared > 2 * len(PROMPTS)  # the answers are no single token repeated
