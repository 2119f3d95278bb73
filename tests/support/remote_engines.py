"""What the tests of engines over HTTP share: protocols, options, and weights of several steps."""

from contextlib import ExitStack, closing, contextmanager

import jax
import numpy as np
import pytest

from rl4p.protocols.engine import Request
from rl4p.rollout.sglang import SGLang
from rl4p.rollout.vllm import VLLM
from tests.support.remote_doubles import SGLangDouble, VLLMDouble

PROTOCOLS = {"vllm": (VLLM, VLLMDouble), "sglang": (SGLang, SGLangDouble)}
# The protocols differ in tests/rollout/test_vllm.py and test_sglang.py; one is enough in a hurry.
IN_ORDER = [pytest.param("vllm"), pytest.param("sglang", marks=pytest.mark.slow)]
QUICK = {
    "max_response_tokens": 8,
    "timeout_seconds": 20.0,
    "update_seconds": 20.0,
    "patience": 20.0,
    "health_seconds": 0.2,
    "max_probe_gap": 1e-3,
}


@contextmanager
def engine_on(name, policy, params, count, folder, **options):
    """Gives an engine with so many doubles, which begin with the parameters."""
    sampler, double = PROTOCOLS[name]
    with ExitStack() as stack:
        doubles = [stack.enter_context(closing(double(policy, params))) for _ in range(count)]
        rollout = sampler(
            servers=tuple(each.url for each in doubles),
            weights_folder=str(folder),
            **QUICK | options,
        )
        engine = stack.enter_context(closing(rollout.open(policy)))
        yield engine, doubles


def of_step(params, step):
    """Returns other weights for each step."""
    noise = np.random.default_rng(step)
    return jax.tree.map(
        lambda x: np.asarray(x) + np.float32(0.2) * noise.normal(size=x.shape).astype(np.float32),
        params,
    )


def requests_of(prompts, count, seed, limit=8):
    """Returns a request with so many completions for each prompt."""
    keys = jax.random.split(jax.random.key(seed), len(prompts) * count)
    keys_PN = np.split(np.asarray(jax.random.key_data(keys)), len(prompts))
    return [
        Request(tokens=prompt, keys_N=keys_N, max_tokens=limit)
        for prompt, keys_N in zip(prompts, keys_PN, strict=True)
    ]


def repeated(prompts, count):
    return [prompt for prompt in prompts for _ in range(count)]


def updates(double):
    """Returns how often a double was asked to load weights."""
    return double.asked.count("/update_weights") + double.asked.count("/update_weights_from_disk")
