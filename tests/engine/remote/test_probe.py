"""Tests the probe that shows whether a server has its weights."""

import dataclasses
import subprocess
import sys
from copy import copy

import jax
import numpy as np
import pytest

from rl4p.distributed.mesh import Mesh
from rl4p.engine.remote.probe import Probe
from rl4p.model.lora import LoRA
from rl4p.model.pretrained import Pretrained
from rl4p.rollout.remote_sampler import token_logprobs


@pytest.fixture(scope="module")
def probe(policy):
    return Probe(policy, token_logprobs)


def with_limit(probe, limit):
    """Returns the probe with another limit."""
    other = copy(probe)
    other.limit = limit
    return other


def decoded(policy, params, tokens):
    """Returns the log-probabilities by the programs of a sampler, one decode step a token."""
    decoder, held = policy.decoder, policy.for_sampling(params)
    cache = decoder.empty_cache(1, len(tokens))

    @jax.jit
    def step(held, token, t, cache):
        at = t[None, None]
        hidden, cache = decoder.extend(held, token[None, None], at, at * 0 + 1, cache, t)
        return jax.nn.log_softmax(decoder.logits(held, hidden[0, 0])), cache

    found = []
    for t, token in enumerate(tokens[:-1]):
        logprobs, cache = step(held, np.int32(token), np.int32(t), cache)
        found.append(float(logprobs[tokens[t + 1]]))
    return found


def test_the_sequence_is_fixed_and_has_digits(policy, probe):
    text = policy.tokenizer.decode(probe.tokens)
    assert text.startswith("If 38 + 47 = 85, is")
    assert len(probe.tokens) == 32
    assert probe.tokens == Probe(policy, token_logprobs).tokens
    assert all(0 <= token < policy.decoder.config.vocabulary for token in probe.tokens)


@pytest.mark.parametrize(("positions", "length"), [(8, 8), (31, 31), (33, 32)])
def test_the_sequence_fits_the_model(policy, positions, length):
    config = dataclasses.replace(policy.decoder.config, max_positions=positions)
    decoder = dataclasses.replace(policy.decoder, config=config)
    assert len(Probe(dataclasses.replace(policy, decoder=decoder), token_logprobs).tokens) == length


def test_what_is_expected_is_what_numpy_computes(policy, params, probe, numpy_logits):
    logits = numpy_logits(policy.decoder.config, params, probe.tokens)
    logprobs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = logprobs[np.arange(31), probe.tokens[1:]]
    found = probe.expected(params)
    assert (found.dtype, found.shape) == (np.float32, (31,))
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_adapters_and_critics_may_be_beside(policy, params):
    decoder = dataclasses.replace(policy.decoder, lora=LoRA(rank=2, targets="up"))
    adapted = dataclasses.replace(policy, decoder=decoder, frozen=params)
    adapters = decoder.lora.init(jax.random.key(0), params)
    expected = Probe(policy, token_logprobs).expected(
        params | {"critic": {"head": params["embedding"]}}
    )
    np.testing.assert_allclose(
        Probe(adapted, token_logprobs).expected(adapters), expected, atol=1e-5
    )
    other = Probe(adapted, token_logprobs).expected(jax.tree.map(lambda x: x + 0.1, adapters))
    assert np.abs(other - expected).max() > 1e-3


@pytest.mark.parametrize("leaf", ["embedding", "norm", "query", "down", "attention_norm"])
def test_each_weight_matters(probe, params, leaf):
    """A server that did not load one of them is caught."""

    def scaled(path, x):
        names = [str(key.key) for key in path]
        return x * 1.01 if leaf in names else x

    expected, found = (probe.expected(x) for x in (params, jax.tree.map_with_path(scaled, params)))
    assert "is above the limit" in str(with_limit(probe, 1e-5).problem(found, expected, None))


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow)])
def test_stale_weights_are_caught_after_one_ordinary_step(dtype):
    """One step of Adam changes each weight by the learning rate, of which this is the default."""
    policy, old = Pretrained(path="rl4p/tiny", dtype=dtype).build(Mesh(dp=1), jax.random.key(0))
    probe, signs = Probe(policy, token_logprobs), np.random.default_rng(0)
    new = jax.tree.map(lambda x: x + np.float32(5e-5 * signs.choice([-1, 1], x.shape)), old)
    previous, expected = probe.expected(old), probe.expected(new)
    limit = 1e-3 if dtype == "float32" else 0.25
    stale, right = (decoded(policy, params, probe.tokens) for params in (old, new))
    assert with_limit(probe, limit).problem(right, expected, previous) is None
    assert with_limit(probe, limit).problem(right, expected, None) is None
    assert "it still decodes" in str(with_limit(probe, None).problem(stale, expected, previous))
    assert with_limit(probe, limit).problem(stale, previous, None) is None


def test_weights_that_did_not_change_are_never_stale(policy, params, probe):
    expected = probe.expected(params)
    for previous in (expected, expected.copy(), expected + 1e-7):
        assert with_limit(probe, 1e-3).problem(expected + 1e-5, expected, previous) is None


@pytest.mark.parametrize("size", [1e-3, 0.3, 1, 2, 10])
def test_rounding_is_never_called_stale_and_hides_no_change_of_its_size(probe, size):
    """Tests changes from far below to far above the rounding of an engine, which is 1 here."""
    random = np.random.default_rng(0)
    stale, probe = 0, with_limit(probe, None)
    for _ in range(1000):
        previous, change, rounding = random.normal(0, 1, (3, 31))
        expected = previous + size * change
        assert probe.problem(expected + rounding, expected, previous) is None
        stale += probe.problem(previous + rounding, expected, previous) is not None
    if size >= 2:
        assert stale > 990


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x: x[1:], "it returned 30 log-probabilities of the probe's tokens, not 31"),
        (lambda x: [], "it returned 0 log-probabilities of the probe's tokens, not 31"),
        (lambda x: [*x[:4], None, *x[5:]], "the log-probability of the probe's token 5 is nan"),
        (lambda x: [*x[:30], -np.inf], "the log-probability of the probe's token 31 is -inf"),
        (
            lambda x: [*x[:2], -3.5, *x[3:]],
            "the log-probability of the probe's token 3 is -3.5, but -2 by the new weights: the "
            "gap 1.5 is above the limit 0.1",
        ),
        (lambda x: [-2.05] * 31, None),
        (
            lambda x: [-1.01] * 31,
            "it still decodes with the weights before: the log-probabilities of the probe made 1% "
            "of the change to the new weights, which is 1 for each token",
        ),
    ],
)
def test_a_problem_is_a_sentence_with_its_size(probe, change, sentence):
    expected = np.full(31, -2, np.float32)
    found = with_limit(probe, 0.1).problem(change(list(expected)), expected, expected + 1)
    assert found == sentence


FOUR_DEVICES = """
import jax, numpy as np
from rl4p.distributed.mesh import Mesh
from rl4p.model.pretrained import Pretrained
from rl4p.engine.remote.probe import Probe
from rl4p.rollout.remote_sampler import token_logprobs

found = []
for mesh in (Mesh(dp=1), Mesh(dp=2, fsdp=2), Mesh(dp=2, rollout_devices=1)):
    policy, params = Pretrained(path="rl4p/tiny").build(mesh, jax.random.key(0))
    found.append(Probe(policy, token_logprobs).expected(params))
np.testing.assert_allclose(found[1], found[0], atol=1e-4)
np.testing.assert_allclose(found[2], found[0], atol=1e-4)
"""


@pytest.mark.slow
def test_devices_change_nothing(on_devices):
    command = [sys.executable, "-c", FOUR_DEVICES]
    done = subprocess.run(command, capture_output=True, text=True, env=on_devices(4))
    assert done.returncode == 0, done.stderr[-3000:]
