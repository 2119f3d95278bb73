"""The samples of a group share the cache of their prompt: they answer as samples with copies do."""

import dataclasses
import subprocess
import sys

import jax
import numpy as np
import pytest

from rl4p.engine import batch as batches
from rl4p.engine import layout, speculation
from rl4p.engine.decode import decode
from rl4p.engine.layout import shares_prompts
from rl4p.engine.prompts import few
from rl4p.engine.speculation import speculate
from rl4p.model.decoder_config import ConvolutionConfig, LatentConfig, MambaConfig
from rl4p.protocols.engine import Request
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from tests.support.requests import keys, next_turns

R = 70

PLAIN = {}
KINDS = {
    "plain": PLAIN,
    "windows": {"layers": 3, "window": 5, "sliding": (True, False, True)},
    "chunks": {
        "layers": 3,
        "window": 5,
        "sliding": (True, False, True),
        "chunked": True,
        "unrotated": (False, True, False),
        "normed_rotations": True,
        "query_growth": 0.5,
        "query_growth_step": 7,
    },
    "states": {
        "layers": 4,
        "mixers": ("mamba", "attention", "convolution", "attention"),
        "mamba": MambaConfig(heads=4, head_width=8, groups=2, state=8),
        "convolution": ConvolutionConfig(),
    },
    "sinks": {"attention_sinks": True, "attention_softcap": 3.0},
    "latents": {
        "head_width": 12,
        "rotary_width": 4,
        "num_kv_heads": 4,
        "latent": LatentConfig(
            rank=8, query_rank=None, unrotated_width=8, rotated_width=4, value_width=8
        ),
        "mixers": ("latent", "latent"),
    },
}


@pytest.fixture(autouse=True)
def short_prompts_are_shared(monkeypatch):
    monkeypatch.setattr(layout, "SHARED_COLUMNS", 1)


@pytest.fixture
def shared(monkeypatch):
    """The prompts and places of each device call; `None` if nothing is shared."""
    shapes = []

    def noted(run, place):
        def call(*args, **options):
            shapes.append(args[place] and args[place].row_PM.shape)
            return run(*args, **options)

        return call

    monkeypatch.setattr(batches, "decode", noted(decode, 9))
    monkeypatch.setattr(batches, "speculate", noted(speculate, 9))
    return shapes


@pytest.fixture(scope="module")
def ending(policy):
    """One token in 20 ends a response, so that most rows end early."""
    return dataclasses.replace(policy, end_ids=tuple(range(0, 264, 20)))


def of_kind(ending, name):
    """Returns the policy with other layers, and its parameters."""
    config = dataclasses.replace(ending.decoder.config, max_positions=256, **KINDS[name])
    decoder = dataclasses.replace(ending.decoder, config=config)
    noise, fresh = np.random.default_rng(0), jax.jit(decoder.init)(jax.random.key(0))
    params = jax.tree.map(
        lambda x: np.float32(x + noise.normal(0, 0.1, x.shape)), jax.device_get(fresh)
    )
    policy = dataclasses.replace(ending, decoder=decoder)
    return policy, policy.mesh.replicate(params)


def groups(*sizes):
    """Returns requests of several lengths and limits, for so many samples each."""
    random, lengths = np.random.default_rng(0), (3, 16, 9, 1, 12)
    limits = (40, R, 30, R, R)
    return [
        Request(
            tokens=random.integers(0, 256, length).tolist(),
            keys_N=keys(*range(10 * i, 10 * i + size)),
            max_tokens=limit,
        )
        for i, (length, limit, size) in enumerate(zip(lengths, limits, sizes, strict=False))
    ]


def answers(rollout, policy, params, requests):
    engine = rollout.open(policy)
    engine.publish(params, 3)
    return engine.complete(requests)


def assert_same(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.tokens.tolist() == b.tokens.tolist()
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=2e-5)


QUICK = [(kind, "auto") for kind in ("plain", "windows", "latents")]
LONG = [
    pytest.param(kind, dtype, marks=pytest.mark.slow)
    for kind in KINDS
    for dtype in ("auto", "int8")
    if (kind, dtype) not in [*QUICK, ("latents", "int8")]
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dtype"), [*QUICK, *LONG])
def test_shared_prompts_change_no_token(ending, shared, kind, dtype):
    """In 6 slots, prompts come and go; with all, slots and prompts are given up as rows end."""
    policy, params = of_kind(ending, kind)
    requests, naive = groups(4, 8, 3, 1, 6), NaiveSampler(max_response_tokens=R)
    expected = answers(naive, policy.with_kv_cache(dtype), params, requests)
    for slots in (None, 6):
        rollout = Continuous(max_response_tokens=R, slots=slots, kv_cache_dtype=dtype)
        assert_same(answers(rollout, policy, params, requests), expected)
    assert None not in shared
    assert len(set(shared)) > 2


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_drafts_are_read_behind_shared_prompts(ending, shared, monkeypatch, dtype):
    policy, params = of_kind(ending, "plain")
    requests = [dataclasses.replace(each, tokens=[7, 8] * 5) for each in groups(2, 2)]
    # Near greedy, so that drafts are right; rounding of logits is divided by the temperature.
    options = {"max_response_tokens": R, "temperature": 0.05}
    monkeypatch.setattr(speculation, "TOKENS_OF_CACHED", 10**9)  # drafts cost nothing
    expected = answers(NaiveSampler(**options), policy.with_kv_cache(dtype), params, requests)
    rollout = Continuous(**options, draft_tokens=3, kv_cache_dtype=dtype)
    assert_same(answers(rollout, policy, params, requests), expected)
    assert rollout.metrics()["rollout/drafted"] > 0
    assert None not in shared


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["plain", pytest.param("states", marks=pytest.mark.slow)])
def test_a_kept_sequence_has_its_prompt(ending, shared, kind):
    """The next turn, whose context is no group's, goes on from the row of prompt and response."""
    policy, params = of_kind(ending, kind)
    engine = Continuous(max_response_tokens=R).open(policy)
    engine.publish(params, 3)
    requests = [dataclasses.replace(each, keep=True) for each in groups(4, 3)]
    first = engine.complete(requests)
    assert None not in shared
    before, shared[:] = engine.prefilled_tokens, []
    later = next_turns(requests, first)
    rollout = NaiveSampler(max_response_tokens=R)
    assert_same(engine.complete(later), answers(rollout, policy, params, later))
    assert engine.prefilled_tokens - before == 4 * len(later)
    assert set(shared) == {None}


def test_long_prompts_of_groups_are_shared(monkeypatch):
    monkeypatch.undo()
    assert shares_prompts(256, prompts=4, sequences=32, slots=32)
    assert not shares_prompts(128, prompts=4, sequences=32, slots=32)
    assert not shares_prompts(256, prompts=4, sequences=7, slots=7)
    assert not shares_prompts(256, prompts=4, sequences=32, slots=1)


@pytest.mark.slow
def test_the_numbers_of_places_are_few():
    assert [few(n) for n in range(1, 14)] == [1, 2, 3, 4, 6, 6, 8, 8, 12, 12, 12, 12, 16]


SHARDS = """
import dataclasses, sys
import jax
import numpy as np
from rl4p.distributed.mesh import Mesh
from rl4p.engine import layout
from rl4p.model.scratch import Scratch
from rl4p.rollout.continuous import Continuous
from rl4p.rollout.naive_sampler import NaiveSampler
from tests.engine.test_prompts import R, answers, assert_same, groups

layout.SHARED_COLUMNS = 1
model = Scratch(
    width=32, layers=2, heads=4, num_kv_heads=2, feed_forward_width=48, max_positions=256
)
requests = groups(4, 8, 3, 1, 8)
expected = None
for options in ({"dp": 1}, {"dp": 4}, {"dp": 2, "tp": 2}, {"dp": 1, "fsdp": 4, "sampling_tp": 4}):
    policy, params = model.build(Mesh(**options), jax.random.key(0))
    policy = dataclasses.replace(policy, end_ids=tuple(range(0, 264, 20)))
    if expected is None:
        naive = NaiveSampler(max_response_tokens=R)
        expected = answers(naive, policy.with_kv_cache(sys.argv[1]), params, requests)
    for slots in (None, 8):
        rollout = Continuous(max_response_tokens=R, slots=slots, kv_cache_dtype=sys.argv[1])
        assert_same(answers(rollout, policy, params, requests), expected)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_devices_share_the_prompts_of_their_own_rows(on_devices, dtype):
    done = subprocess.run(
        [sys.executable, "-c", SHARDS, dtype], capture_output=True, text=True, env=on_devices(4)
    )
    assert done.returncode == 0, done.stderr[-3000:]
