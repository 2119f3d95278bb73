"""Makes the golden files: `python -m tests.golden.make`, in an environment with torch.

Each <case>.npz holds the outputs of transformers for a case (`cases.py`) on torch, in float32 on
the CPU: the logits of the sequences, 64 greedy tokens, and for each tensor the norm of its gradient
and the product of the gradient with noise. The weights are not stored; tests draw them again.
"""

import sys
import tempfile
from copy import deepcopy
from pathlib import Path

import numpy as np

from tests.golden.cases import CASES, decoder_config, make_tensors, noise, sequences
from tests.support.random_models import register_models

FOLDER = Path(__file__).parent
GREEDY = 64


def load(case: str):
    """Returns the case's model as transformers reads it from its files."""
    import torch
    import transformers
    from safetensors.numpy import save_file

    register_models()
    config = transformers.AutoConfig.for_model(**CASES[case])
    with tempfile.TemporaryDirectory() as folder:
        save_file(make_tensors(decoder_config(case)), Path(folder) / "model.safetensors")
        config.save_pretrained(folder)
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            experts_implementation="eager",
            output_loading_info=True,
        )
    assert not any(info.values()), info
    return model.eval()


def file_gradients(model) -> dict[str, np.ndarray]:
    """Returns gradients by the names in the files; that of a constant is 0."""
    import torch
    from safetensors.numpy import load_file

    like = deepcopy(model)
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        for buffer in like.buffers():
            buffer.zero_()
        for parameter, own in zip(like.parameters(), model.parameters(), strict=True):
            parameter.copy_(torch.zeros_like(own) if own.grad is None else own.grad)
        like.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def loss_gradients(model, tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the gradients of the mean cross entropy of the next token."""
    import torch

    model.zero_grad()
    batch = torch.from_numpy(tokens)[None]
    logits = model(batch).logits[0]
    torch.nn.functional.cross_entropy(logits[:-1], batch[0, 1:]).backward()
    return file_gradients(model)


def greedy_tokens(model, prompt: np.ndarray) -> np.ndarray:
    import torch

    tokens = model.generate(
        torch.from_numpy(prompt)[None],
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=GREEDY,
        min_new_tokens=GREEDY,
        do_sample=False,
        pad_token_id=0,
        eos_token_id=None,
    )
    return tokens[0, len(prompt) :].numpy()


def make(case: str) -> dict[str, np.ndarray]:
    import torch

    model = load(case)
    rows = sequences()
    with torch.no_grad():
        logits = [model(torch.from_numpy(row)[None]).logits[0].numpy() for row in rows]
    gradients = loss_gradients(model, rows[-1])
    names = sorted(gradients)
    return {
        "logits": np.concatenate(logits),
        "greedy": greedy_tokens(model, rows[1]).astype(np.int32),
        "gradient_norms": np.array([np.linalg.norm(gradients[name]) for name in names]),
        "gradient_products": np.array(
            [np.vdot(gradients[name], noise(name, gradients[name].shape)) for name in names]
        ),
    }


if __name__ == "__main__":
    for chosen in sys.argv[1:] or CASES:
        np.savez_compressed(FOLDER / f"{chosen}.npz", **make(chosen))
        print(chosen)
