"""The programs that fill, resize and clear the cache."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rl4p.base.errors import InputError
from rl4p.engine import cache as programs
from rl4p.engine.cache import check_scored, scored_tokens
from rl4p.model.cache import Cache


@pytest.fixture
def prefilled(policy, sampled):
    """Contexts of 3 and 5 tokens in 16 columns, of which the first 0 and 11 are unused."""
    tokens = np.random.default_rng(0).integers(0, 256, (2, 16)).astype(np.int32)
    arrays = tokens, np.int32([0, 11]), np.int32([3, 5])
    return programs.prefill(policy.decoder, sampled, *arrays, policy.mesh)


@pytest.fixture(scope="module")
def sampled(policy, params):
    return policy.for_sampling(params)


def rows(cache, *numbers):
    return jax.tree.map(lambda x: np.asarray(x)[list(numbers)], cache)


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_prefill_writes_the_columns_of_its_context(prefilled):
    segments_BS = np.asarray(prefilled.segment_ids_BS)
    assert segments_BS[0].tolist() == [1] * 3 + [0] * 13
    assert segments_BS[1].tolist() == [0] * 11 + [1] * 5
    assert np.asarray(prefilled.positions_BS)[1, 11:].tolist() == [0, 1, 2, 3, 4]


def test_contexts_are_placed_in_slots_and_other_slots_stay(policy, prefilled):
    cache = programs.place(None, prefilled, np.int32([1, 0, 1]), 24, policy.mesh)
    assert cache.positions_BS.shape == (3, 24)
    full = Cache(
        layers=cache.layers,
        positions_BS=cache.positions_BS,
        segment_ids_BS=jnp.ones_like(cache.segment_ids_BS),
    )
    before = rows(full, 0, 1, 2)
    placed = programs.place(full, prefilled, np.int32([-1, -1, 0]), 24, policy.mesh)
    assert_equal(rows(placed, 0, 1), jax.tree.map(lambda x: x[:2], before))
    assert_equal(rows(placed.rows(np.int32([2]), 16), 0), rows(prefilled, 0))
    assert not np.asarray(placed.segment_ids_BS)[2, 16:].any()  # of the former sequence


def test_a_cache_is_resized_with_its_rows(policy, prefilled):
    before, expected = prefilled, rows(prefilled, 0, 1)
    wide = programs.resized(prefilled, np.int32([1, 0, 0]), 20, policy.mesh)
    assert wide.positions_BS.shape == (3, 20)
    assert not np.asarray(wide.segment_ids_BS)[:, 16:].any()
    assert all(x.is_deleted() for x in jax.tree.leaves(before.layers))
    narrow = programs.resized(wide, np.int32([1, 0]), 16, policy.mesh)
    assert_equal(rows(narrow, 0, 1), expected)


def test_the_host_does_not_wait_while_a_cache_is_resized(policy, prefilled, monkeypatch):
    """In the server, another thread would run at each wait, and decoding would pause."""
    monkeypatch.setattr(jax, "block_until_ready", lambda _: pytest.fail("The host waits."))
    wide = programs.resized(prefilled, np.int32([1, 0, 0]), 20, policy.mesh)
    assert wide.positions_BS.shape == (3, 20)


def test_cleared_rows_are_zero_and_others_stay(prefilled):
    before = rows(prefilled, 0, 1)
    cleared = rows(programs.cleared(prefilled, np.array([True, False])), 0, 1)
    assert not any(x[0].any() for x in jax.tree.leaves(cleared))
    assert_equal(rows(cleared, 1), rows(before, 1))


def test_the_row_of_a_slot_is_taken(policy, prefilled):
    columns = prefilled.positions_BS.shape[1]
    row = programs.row_of(prefilled, np.int32(1), columns, policy.mesh)
    assert_equal(rows(row, 0), rows(prefilled, 1))


SHARDS = """
import re
import jax
import numpy as np
from rl4p.distributed.mesh import Mesh
from rl4p.model.scratch import Scratch
from rl4p.engine import cache as programs
from rl4p.engine.batch import Batch
from rl4p.engine.layout import Layout
from rl4p.engine.sequence import TokenSequence
from rl4p.base.types import Sampling

COLLECTIVE = re.compile("all-gather|all-reduce|all-to-all|reduce-scatter|collective-permute")
mesh = Mesh(dp=2, fsdp=1, tp=2)
model = Scratch(
    width=32, layers=2, heads=4, num_kv_heads=2, feed_forward_width=48, max_positions=128
)
policy, params = model.build(mesh, jax.random.key(0))
params, random = policy.for_sampling(params), np.random.default_rng(0)

# Four contexts, two on each shard; then six slots, three of each shard.
tokens_PT = random.integers(0, 256, (4, 16)).astype(np.int32)
arrays = mesh.shard_rows((tokens_PT, np.zeros(4, np.int32), np.full(4, 16, np.int32)))
prefilled = programs.prefill(policy.decoder, params, *arrays, mesh)
assert prefilled.layers[0][0].addressable_shards[0].data.shape == (2, 1, 8, 16)
contexts = [np.asarray(x) for x in jax.tree.leaves(prefilled)]
row_n = mesh.shard_rows(np.int32([1, 0, 0, 1, 1, 0]))
text = programs.place.lower(None, prefilled, row_n, 16, mesh).compile().as_text()
assert not COLLECTIVE.search(text)
cache = programs.place(None, prefilled, row_n, 16, mesh)
for x, context in zip(jax.tree.leaves(cache), contexts, strict=True):
    np.testing.assert_array_equal(x, context[[1, 0, 0, 3, 3, 2]])

# The rows of a shard stay on it.
rows, kept = np.int32([2, 1, 0, 0]), [np.asarray(x) for x in jax.tree.leaves(cache)]
text = programs.resized_layer.lower(cache, mesh.shard_rows(rows), 16, mesh).compile().as_text()
assert not COLLECTIVE.search(text)
cache = programs.resized(cache, rows, 16, mesh)
for x, before in zip(jax.tree.leaves(cache), kept, strict=True):
    np.testing.assert_array_equal(x, before[[2, 1, 3, 3]])

# A batch: a context that two shards need is computed on both. Sequences move only on a CPU.
def sequence(context, seed, most):
    key = np.asarray(jax.random.key_data(jax.random.key(seed)))
    return TokenSequence(
        context=context, key=key, max_tokens=most, end_ids=(), sampling=Sampling()
    )

layout = Layout(sizes=(2, 4, 8), begin=16, most=144, prefill_rows=2)
first, second = (tuple(map(int, x[:9])) for x in tokens_PT[:2])

def places(limits):
    batch = Batch(policy, layout)
    several = [sequence(first if i < 5 else second, i, most) for i, most in enumerate(limits)]
    batch.admit(params, several, keep=False)
    assert (batch.prefills, batch.prefilled_tokens) == (3, 27)
    visited, logprobs = [], {each: [] for each in several}
    while batch.slots.running():
        batch.admit(params, [], keep=False)
        visited.append((batch.size, *map(batch.slots.sequences.index, batch.slots.running())))
        batch.begin(params, steps=8, waiting=False)
        for chunk in batch.end().chunks():
            logprobs[chunk.sequence] += chunk.logprobs
    alone = Batch(policy, layout)
    for each in several:
        one = sequence(each.context, int(each.key[1]), each.max_tokens)
        new, expected = [one], []
        while new or alone.slots.running():
            alone.admit(params, new, keep=False)
            alone.begin(params, steps=64, waiting=False)
            for chunk in alone.end().chunks():
                expected += chunk.logprobs
            new = []
        assert one.tokens == each.tokens
        np.testing.assert_allclose(logprobs[each], expected, rtol=1e-5)
    return list(dict.fromkeys(visited))

all_slots, one_of_each_shard = (8, *range(8)), (2, 0, 1)
assert places((4, 4, 4, 80, 4, 80, 4, 4)) == [all_slots, one_of_each_shard]
assert places((4, 80, 4, 80, 4, 4, 4, 4)) == [all_slots, one_of_each_shard]
Mesh.platform = "gpu"  # where a row would have to be sent
assert places((4, 80, 4, 80, 4, 4, 4, 4)) == [all_slots, (4, 0, 1)]
"""


@pytest.mark.slow
def test_rows_leave_their_devices_only_on_a_cpu(on_devices):
    done = subprocess.run(
        [sys.executable, "-c", SHARDS], capture_output=True, text=True, env=on_devices(4)
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_scores_do_not_depend_on_the_padding(policy, params, sampled):
    tokens = [5, 9, 2, 7, 1, 3, 8]
    scores = np.asarray(scored_tokens(policy.decoder, sampled, tokens, policy.mesh))[
        : len(tokens) - 1
    ]
    row_BT, ones_BT = np.int32([tokens]), np.ones((1, len(tokens)), np.int32)
    hidden = policy.decoder.hidden(params, row_BT, np.arange(len(tokens))[None], ones_BT)
    logprobs = jax.nn.log_softmax(policy.decoder.logits(params, hidden))[0]
    wanted = [logprobs[t, token] for t, token in enumerate(tokens[1:])]
    np.testing.assert_allclose(scores, wanted, atol=1e-5)
    longer = np.asarray(scored_tokens(policy.decoder, sampled, tokens * 4, policy.mesh))
    np.testing.assert_allclose(longer[: len(tokens) - 1], scores, atol=1e-5)


def test_all_positions_can_be_scored():
    check_scored([1] * 8, 8)


@pytest.mark.parametrize("count", [0, 9])
def test_tokens_that_cannot_be_scored_are_refused(count):
    with pytest.raises(InputError, match=f"{count} tokens cannot be scored"):
        check_scored([1] * count, 8)
