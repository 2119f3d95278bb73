"""Logits and gradients on the device against transformers on torch, on the CPU in float32."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.benchmarks.accelerator.result import Result
from rl4p.model.decoder import Decoder
from rl4p.model.huggingface import read_config, read_params
from tests.golden import forward, make
from tests.golden.cases import to_tensors
from tests.support.random_models import random_model

SHAPE = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
}
LENGTHS = (1, 9, 64, 300)


def measure(case: str, result: Result, folder: Path) -> None:
    shape = {} if result.tiny else SHAPE
    model = random_model(case, "AutoModelForCausalLM", **shape)
    model.save_pretrained(folder)
    config = read_config(folder)
    draw = np.random.default_rng(1)
    rows = [draw.integers(0, config.vocabulary, length) for length in LENGTHS]
    exact = torch_logits(model, rows)
    gradients = make.loss_gradients(model, rows[2])
    greedy = make.greedy_tokens(model, rows[1])
    cpu, device = jax.devices("cpu")[0], jax.devices()[0]
    decoder = Decoder(config=config)
    half = replace(decoder, dtype="bfloat16")
    with jax.default_device(cpu):
        params = jax.device_get(read_params(folder, decoder, "float32"))
    for where, name, form, precision in (
        (cpu, "CPU", decoder, None),
        (device, device.device_kind, decoder, None),
        (device, device.device_kind, decoder, "highest"),
        (cpu, "CPU", half, None),
        (device, device.device_kind, half, None),
    ):
        with (
            jax.default_device(where),
            jax.default_matmul_precision(precision) if precision else nullcontext(),
        ):
            here, each = jax.device_put(params, where), replace(form, platform=where.platform)
            logits = np.asarray(forward.logits(each, here, *forward.rows(rows, max(LENGTHS))))
            gradient = forward.gradient(each, here, np.int32(rows[2])[None])
            tokens = forward.greedy(each, here, np.int32(rows[1]), make.GREEDY)
        result.add(
            on=name,
            dtype=each.dtype,
            precision=precision or "default",
            logits=max(
                float(np.max(np.abs(row[: len(theirs)] - theirs)))
                for row, theirs in zip(logits, exact, strict=True)
            ),
            of=float(np.max(np.abs(np.concatenate(exact)))),
            gradients_relative=worst_gradient(to_tensors(config, gradient), gradients),
            equal_greedy_tokens=f"{agreed(tokens, greedy)} of {len(greedy)}",
        )


def torch_logits(model: Any, rows: list[np.ndarray]) -> list[np.ndarray]:
    import torch

    with torch.no_grad():
        return [model(torch.from_numpy(tokens)[None]).logits[0].numpy() for tokens in rows]


def worst_gradient(ours: dict[str, Any], theirs: dict[str, Any]) -> float:
    """Returns the largest difference of a tensor's gradient, relative to its norm."""
    return max(
        float(np.linalg.norm(ours[name] - theirs[name]) / np.linalg.norm(theirs[name]))
        for name in ours
        if theirs[name].any()
    )


def agreed(ours: list[int], theirs: list[int]) -> int:
    """Returns the number of tokens before the first that differs."""
    differ = [a != b for a, b in zip(ours, theirs, strict=True)]
    return differ.index(True) if True in differ else len(differ)
